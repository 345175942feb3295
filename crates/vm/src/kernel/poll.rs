//! poll, ppoll, select and pselect over descriptors inside and outside.
//!
//! What lives inside the vm is looked at directly; all outside descriptors of
//! one call are asked with one host poll, of which only the answers that say
//! something are written down.

use super::fd::{DescriptionId, Object, ObjectId};
use super::{Call, Halt, Outcome};
use crate::machine::Vm;
use crate::memory;
use crate::thread::HostInterest;

/// One descriptor and the events asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub fd: i32,
    pub events: i16,
}

/// What a poll found, and what to wait for if it found nothing.
#[derive(Default)]
pub(super) struct Found {
    /// In the order of the question; zero where nothing is ready.
    pub ready: Vec<i16>,
    pub host: Vec<HostInterest>,
    pub objects: Vec<ObjectId>,
    /// When the first timer among them expires.
    pub timer: Option<u64>,
}

pub(super) fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Nothing to poll, but something outside (a signal) can end the wait, so time
/// must not jump ahead of it.
pub(super) const OUTSIDE: HostInterest = HostInterest {
    fd: i32::MIN,
    events: 0,
};

const ALWAYS: i16 = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;

impl Vm {
    /// Readiness of something inside the vm; None for host descriptors.
    pub(super) fn readiness(&mut self, id: DescriptionId) -> Option<i16> {
        let now = self.now();
        if let Object::Signals(mask) = self.kernel.fds.peek(id)?.object {
            let pending = self.pending_signals() & mask != 0;
            return Some(if pending {
                libc::POLLIN | libc::POLLRDNORM
            } else {
                0
            });
        }
        Some(match &self.kernel.fds.peek(id)?.object {
            Object::Host(_) => return None,
            Object::Signals(_) => 0,
            Object::Pipe(end) => end.readiness(),
            Object::Pair(end) => end.readiness(),
            Object::Event(counter) => counter.readiness(),
            Object::Timer(timer) => timer.readiness(now),
            Object::Epoll(_) => {
                if self.epoll_has_inner_event(id) {
                    libc::POLLIN | libc::POLLRDNORM
                } else {
                    0
                }
            }
            Object::Bytes { .. } | Object::Listing(_) => {
                libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM
            }
        })
    }

    /// Adds to `found` what a wait for this description must watch.
    fn watch(&mut self, id: DescriptionId, events: i16, found: &mut Found) {
        let now = self.now();
        let Some(description) = self.kernel.fds.peek(id) else {
            return;
        };
        match &description.object {
            Object::Host(file) => found.host.push(HostInterest {
                fd: file.number(),
                events,
            }),
            Object::Pipe(end) => found.objects.push(end.pipe.borrow().id),
            Object::Pair(end) => found.objects.push(end.id()),
            Object::Event(counter) => found.objects.push(counter.id),
            Object::Timer(timer) => {
                found.objects.push(timer.id);
                found.timer = earlier(found.timer, timer.wakes_at(now));
            }
            Object::Epoll(epoll) => {
                found.objects.push(epoll.id);
                let (host, members) = (epoll.host_interest(), epoll.inner_members());
                found.host.extend(host);
                for (member, events) in members {
                    if member != id {
                        self.watch(member, events, found);
                    }
                }
            }
            Object::Signals(_) => {
                found.objects.push(super::signalfd::SIGNALS);
                found.host.push(OUTSIDE);
            }
            Object::Bytes { .. } | Object::Listing(_) => {}
        }
    }

    /// What a wait on one description must watch.
    pub(super) fn watching(&mut self, id: DescriptionId, events: i16, found: &mut Found) {
        self.watch(id, events, found);
    }

    /// Looks at all descriptors once.
    pub(super) fn look(&mut self, asked: &[Asked], tag: i64) -> Result<Found, Halt> {
        let mut found = Found::default();
        let mut outside: Vec<(usize, libc::pollfd)> = Vec::new();
        for (index, entry) in asked.iter().enumerate() {
            let mut ready = 0;
            if entry.fd >= 0 {
                match self.kernel.fds.id(entry.fd) {
                    Err(_) => ready = libc::POLLNVAL,
                    Ok(id) => {
                        if let Some(state) = self.readiness(id) {
                            ready = state & (entry.events | ALWAYS);
                        }
                        let before = found.host.len();
                        self.watch(id, entry.events, &mut found);
                        let polled = found.host[before..]
                            .iter()
                            .filter(|interest| **interest != OUTSIDE);
                        for interest in polled {
                            outside.push((
                                index,
                                libc::pollfd {
                                    fd: interest.fd,
                                    events: interest.events,
                                    revents: 0,
                                },
                            ));
                        }
                    }
                }
            }
            found.ready.push(ready);
        }
        if outside.is_empty() {
            return Ok(found);
        }
        if self.io.is_copy() {
            for (index, _) in &outside {
                let entry = asked[*index];
                let id = self.kernel.fds.id(entry.fd)?;
                found.ready[*index] |= self.readiness_in_copy(id) & (entry.events | ALWAYS);
            }
            return Ok(found);
        }
        let (_, answer) = self.io.external_bytes(tag as u32, || {
            let mut entries: Vec<libc::pollfd> = outside.iter().map(|(_, entry)| *entry).collect();
            // SAFETY: the entries live across the call, which does not wait.
            unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as u64, 0) };
            let mut answer = Vec::new();
            for (entry, (index, _)) in entries.iter().zip(&outside) {
                if entry.revents != 0 {
                    answer.extend_from_slice(&(*index as u32).to_le_bytes());
                    answer.extend_from_slice(&entry.revents.to_le_bytes());
                }
            }
            (0, answer)
        })?;
        for entry in answer.chunks_exact(6) {
            let index = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]) as usize;
            let revents = i16::from_le_bytes([entry[4], entry[5]]);
            let allowed = asked.get(index).map_or(0, |asked| asked.events | ALWAYS);
            if let Some(ready) = found.ready.get_mut(index) {
                *ready |= revents & allowed;
            }
        }
        Ok(found)
    }

    /// Waits for what `found` names, until the call's limit.
    pub(super) fn wait_for_found<T>(&mut self, call: &Call, found: Found) -> Result<T, Halt> {
        let deadline = earlier(call.limit, found.timer);
        self.wait_for(call, found.host, found.objects, deadline)
    }

    pub(super) fn out_of_time(&self, call: &Call) -> bool {
        call.limit.is_some_and(|limit| limit <= self.now())
    }

    pub(super) fn sys_poll(&mut self, call: &mut Call, timeout: u64) -> Outcome {
        if !call.again && timeout as i32 >= 0 {
            call.limit = Some(self.now() + timeout as i32 as u64 * 1_000_000);
        }
        self.poll_entries(call)
    }

    pub(super) fn sys_ppoll(&mut self, call: &mut Call) -> Outcome {
        let [_, _, timeout, mask, size, _] = call.arguments;
        if !call.again {
            call.limit = self.deadline(timeout, false, false)?;
        }
        self.with_mask(call, mask, size, Self::poll_entries)
    }

    fn poll_entries(&mut self, call: &mut Call) -> Outcome {
        let [address, count, ..] = call.arguments;
        let count = u64::from(count as u32);
        if count > 1 << 20 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let mut asked = Vec::with_capacity(count as usize);
        for index in 0..count {
            let entry = memory::get::<libc::pollfd>(address + index * 8)?;
            asked.push(Asked {
                fd: entry.fd,
                events: entry.events,
            });
        }
        let found = self.look(&asked, libc::SYS_poll)?;
        let ready = found.ready.iter().filter(|ready| **ready != 0).count();
        if ready == 0 && !self.out_of_time(call) {
            return self.wait_for_found(call, found);
        }
        for (index, ready) in found.ready.iter().enumerate() {
            memory::write(address + index as u64 * 8 + 6, &ready.to_le_bytes())?;
        }
        Ok(ready as i64)
    }

    pub(super) fn sys_select(&mut self, call: &mut Call) -> Outcome {
        let timeout = call.arguments[4];
        if !call.again && timeout != 0 {
            let time = memory::get::<libc::timeval>(timeout)?;
            if time.tv_sec < 0 || time.tv_usec < 0 {
                return Err(Halt::Errno(libc::EINVAL));
            }
            let wait = (time.tv_sec as u64)
                .saturating_mul(1_000_000_000)
                .saturating_add(time.tv_usec as u64 * 1000);
            call.limit = Some(self.now().saturating_add(wait));
        }
        let result = self.select_sets(call);
        if timeout != 0
            && let (Ok(_), Some(limit)) = (&result, call.limit)
        {
            let left = limit.saturating_sub(self.now());
            let left = libc::timeval {
                tv_sec: (left / 1_000_000_000) as i64,
                tv_usec: (left % 1_000_000_000 / 1000) as i64,
            };
            // The time left is a courtesy; a bad address is not an error.
            let _ = memory::put(timeout, left);
        }
        result
    }

    pub(super) fn sys_pselect(&mut self, call: &mut Call) -> Outcome {
        let [.., timeout, mask] = call.arguments;
        if !call.again {
            call.limit = self.deadline(timeout, false, false)?;
        }
        let (mask, size) = if mask == 0 {
            (0, 8)
        } else {
            (memory::get::<u64>(mask)?, memory::get::<u64>(mask + 8)?)
        };
        self.with_mask(call, mask, size, Self::select_sets)
    }

    fn select_sets(&mut self, call: &mut Call) -> Outcome {
        let [count, sets @ ..] = call.arguments;
        let sets = [sets[0], sets[1], sets[2]];
        if (count as i32) < 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let count = (count as i32).min(1 << 20) as usize;
        let words = count.div_ceil(64);
        const EVENTS: [i16; 3] = [
            libc::POLLIN | libc::POLLRDNORM | libc::POLLHUP | libc::POLLERR,
            libc::POLLOUT | libc::POLLWRNORM | libc::POLLERR,
            libc::POLLPRI,
        ];
        let mut masks = [vec![0u64; words], vec![0u64; words], vec![0u64; words]];
        for (mask, address) in masks.iter_mut().zip(sets) {
            if address != 0 {
                for (index, word) in mask.iter_mut().enumerate() {
                    *word = memory::get(address + index as u64 * 8)?;
                }
            }
        }
        let mut asked = Vec::new();
        for fd in 0..count {
            let mut events = 0;
            for (mask, wanted) in masks.iter().zip(EVENTS) {
                if mask[fd / 64] & (1 << (fd % 64)) != 0 {
                    events |= wanted;
                }
            }
            if events != 0 {
                asked.push(Asked {
                    fd: fd as i32,
                    events: events & !ALWAYS,
                });
            }
        }
        let found = self.look(&asked, libc::SYS_poll)?;
        if found.ready.iter().any(|ready| ready & libc::POLLNVAL != 0) {
            return Err(Halt::Errno(libc::EBADF));
        }
        let mut result = [vec![0u64; words], vec![0u64; words], vec![0u64; words]];
        let mut bits = 0;
        for (entry, ready) in asked.iter().zip(&found.ready) {
            let (word, bit) = (entry.fd as usize / 64, 1u64 << (entry.fd % 64));
            for (set, events) in EVENTS.iter().enumerate() {
                if masks[set][word] & bit != 0 && ready & events != 0 {
                    result[set][word] |= bit;
                    bits += 1;
                }
            }
        }
        if bits == 0 && !self.out_of_time(call) {
            return self.wait_for_found(call, found);
        }
        for (mask, address) in result.iter().zip(sets) {
            if address != 0 {
                for (index, word) in mask.iter().enumerate() {
                    memory::put(address + index as u64 * 8, *word)?;
                }
            }
        }
        Ok(bits)
    }

    /// Runs a waiting call with another signal mask (ppoll, pselect,
    /// epoll_pwait). The old mask comes back when the
    /// call is over.
    pub(super) fn with_mask(
        &mut self,
        call: &mut Call,
        mask: u64,
        size: u64,
        wait: fn(&mut Vm, &mut Call) -> Outcome,
    ) -> Outcome {
        if mask == 0 {
            return wait(self, call);
        }
        if size != 8 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let mask = memory::get(mask)?;
        self.set_temporary_mask(call, mask);
        wait(self, call)
    }
}
