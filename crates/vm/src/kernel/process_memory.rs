//! process_vm_readv and process_vm_writev of a process's own memory.
//!
//! What lies in other processes is not in the recording of this one, so it is
//! refused. Like the kernel's, a transfer ends at the first page that is not
//! there and says how far it came.

use super::{Call, Halt, Outcome};
use crate::layout::{PAGE, page_down};
use crate::machine::Vm;
use crate::memory;

/// As many parts as the kernel takes.
const MOST_PARTS: u64 = 1024;

fn parts(at: u64, count: u64) -> Result<Vec<libc::iovec>, Halt> {
    if count > MOST_PARTS {
        return Err(Halt::Errno(libc::EINVAL));
    }
    let size = size_of::<libc::iovec>() as u64;
    (0..count)
        .map(|index| Ok(memory::get(at.wrapping_add(index * size))?))
        .collect()
}

/// Pieces of both lists that lie opposite each other and cross no page:
/// address here, address there, length.
fn pieces(here: &[libc::iovec], there: &[libc::iovec]) -> Vec<(u64, u64, u64)> {
    let to_page_end = |address: u64| page_down(address).wrapping_add(PAGE) - address;
    let mut pieces = Vec::new();
    let (mut one, mut other) = (here.iter().copied(), there.iter().copied());
    let (mut near, mut far) = (one.next(), other.next());
    while let (Some(mine), Some(theirs)) = (&mut near, &mut far) {
        if mine.iov_len == 0 {
            near = one.next();
            continue;
        }
        if theirs.iov_len == 0 {
            far = other.next();
            continue;
        }
        let (from, to) = (mine.iov_base as u64, theirs.iov_base as u64);
        let length = (mine.iov_len.min(theirs.iov_len) as u64)
            .min(to_page_end(from))
            .min(to_page_end(to));
        pieces.push((from, to, length));
        for part in [mine, theirs] {
            part.iov_base = part.iov_base.wrapping_byte_add(length as usize);
            part.iov_len -= length as usize;
        }
    }
    pieces
}

impl Vm {
    pub(super) fn sys_process_memory(&mut self, call: &Call) -> Outcome {
        let [process, here, here_count, there, there_count, flags] = call.arguments;
        let tid = process as i32;
        let own =
            tid == self.kernel.process.pid || self.threads.values().any(|thread| thread.tid == tid);
        if !own {
            return self.refuse_call(call.number, libc::EPERM);
        }
        if flags != 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let reads = call.number as i64 == libc::SYS_process_vm_readv;
        let mut done = 0;
        for (here, there, length) in pieces(&parts(here, here_count)?, &parts(there, there_count)?)
        {
            let (from, to) = if reads { (there, here) } else { (here, there) };
            let moved = memory::read_vec(from, length as usize);
            if moved.and_then(|bytes| memory::write(to, &bytes)).is_err() {
                if done == 0 {
                    return Err(Halt::Errno(libc::EFAULT));
                }
                break;
            }
            self.code_changed(to..to + length);
            done += length;
        }
        Ok(done as i64)
    }
}
