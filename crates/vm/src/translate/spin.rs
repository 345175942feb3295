//! Loops that only wait: reading memory until another thread changes it.
//!
//! A loop that stores nothing and carries nothing from one round to the next
//! in registers does the same every time until memory changes. Whoever waits
//! like that without a `pause` would burn its whole turn, so translated code
//! can give way where such a loop repeats. Failed attempts to take a lock
//! (`cmpxchg`, `xchg`) count as waiting too.
//!
//! Giving way is allowed anywhere, so a loop taken for more or less than it is
//! costs time and nothing else.

use super::Fetch;
use super::decode::decode_one;
use super::kind::general_number;
use iced_x86::{FlowControl, InstructionInfoFactory, Mnemonic, OpAccess};

/// Instructions of the longest such loop.
const LONGEST: usize = 16;

/// True if the code at `head` comes back to `head` and only waits.
pub(super) fn is_spin(info: &mut InstructionInfoFactory, head: u64, fetch: Fetch) -> bool {
    let mut pc = head;
    let (mut carried, mut written, mut looks) = (0u32, 0u32, false);
    for _ in 0..LONGEST {
        let Some((instruction, _)) = decode_one(pc, fetch) else {
            return false;
        };
        if instruction.is_stack_instruction() || instruction.mnemonic() == Mnemonic::Pause {
            return false;
        }
        let attempt = matches!(instruction.mnemonic(), Mnemonic::Cmpxchg | Mnemonic::Xchg);
        let used = info.info(&instruction);
        for memory in used.used_memory() {
            looks = true;
            let writes = !matches!(
                memory.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess | OpAccess::None
            );
            if writes && !attempt {
                return false;
            }
        }
        let mut now_written = 0;
        for register in used.used_registers() {
            let Some(number) = general_number(register.register()) else {
                // Vector and other registers: no loop that just waits.
                if register.register().is_vector_register() {
                    return false;
                }
                continue;
            };
            let (reads, writes) = match register.access() {
                OpAccess::Read | OpAccess::CondRead => (true, false),
                OpAccess::Write => (false, true),
                OpAccess::None | OpAccess::NoMemAccess => (false, false),
                _ => (true, true),
            };
            let bit = 1 << number;
            if reads && written & bit == 0 {
                carried |= bit;
            }
            if writes {
                now_written |= bit;
            }
        }
        written |= now_written;
        pc = match instruction.flow_control() {
            FlowControl::Next => instruction.next_ip(),
            FlowControl::UnconditionalBranch => instruction.near_branch_target(),
            FlowControl::ConditionalBranch if instruction.near_branch_target() == head => head,
            FlowControl::ConditionalBranch if instruction.near_branch_target() > pc => {
                instruction.next_ip()
            }
            _ => return false,
        };
        if pc == head {
            return looks && carried & written == 0;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spins(code: &[u8]) -> bool {
        let fetch = |pc: u64, buffer: &mut [u8; 15]| {
            let rest = code.get(pc as usize..).unwrap_or(&[]);
            let length = rest.len().min(15);
            buffer[..length].copy_from_slice(&rest[..length]);
            length
        };
        is_spin(&mut InstructionInfoFactory::new(), 0, &fetch)
    }

    #[test]
    fn waiting_for_a_flag() {
        // mov eax, [rdi]; test eax, eax; je 0
        assert!(spins(&[0x8b, 0x07, 0x85, 0xc0, 0x74, 0xfa]));
        // cmp dword ptr [rdi], 0; jne out; jmp 0
        assert!(spins(&[0x83, 0x3f, 0x00, 0x75, 0x02, 0xeb, 0xf9, 0x90]));
    }

    #[test]
    fn trying_a_lock() {
        // xor eax, eax; lock cmpxchg [rdi], ecx; jne 0
        assert!(spins(&[0x31, 0xc0, 0xf0, 0x0f, 0xb1, 0x0f, 0x75, 0xf8]));
    }

    #[test]
    fn work_is_not_waiting() {
        // inc rdi; cmp byte ptr [rdi], 0; jne 0: a pointer moves on
        assert!(!spins(&[0x48, 0xff, 0xc7, 0x80, 0x3f, 0x00, 0x75, 0xf8]));
        // mov [rdi], eax; cmp dword ptr [rsi], 0; je 0: stores
        assert!(!spins(&[0x89, 0x07, 0x83, 0x3e, 0x00, 0x74, 0xf9]));
        // test eax, eax; je 0: looks at nothing
        assert!(!spins(&[0x85, 0xc0, 0x74, 0xfc]));
        // mov rdi, [rdi]; test rdi, rdi; jne 0: a list
        assert!(!spins(&[0x48, 0x8b, 0x3f, 0x48, 0x85, 0xff, 0x75, 0xf8]));
        // pause; cmp dword ptr [rdi], 0; je 0: gives way by itself
        assert!(!spins(&[0xf3, 0x90, 0x83, 0x3f, 0x00, 0x74, 0xf9]));
    }
}
