//! The integer registers of an x86-64 thread.

/// The sixteen general registers, in the order in which instructions encode
/// them, and the instruction pointer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Registers {
    /// rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 … r15.
    pub general: [u64; 16],
    pub rip: u64,
}

/// Encoding numbers by DWARF number: DWARF counts rax, rdx, rcx, rbx, rsi,
/// rdi, rbp, rsp, r8 … r15 (System V ABI for x86-64, figure 3.36).
const ENCODING_OF_DWARF: [usize; 16] = [0, 2, 1, 3, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15];

/// DWARF's number of the return address column.
pub(crate) const RETURN_ADDRESS: gimli::Register = gimli::Register(16);

impl Registers {
    pub const RSP: usize = 4;
    pub const RBP: usize = 5;

    pub fn rsp(&self) -> u64 {
        self.general[Self::RSP]
    }

    pub fn rbp(&self) -> u64 {
        self.general[Self::RBP]
    }

    /// By DWARF number; none for vector and other registers.
    pub(crate) fn dwarf(&self, register: gimli::Register) -> Option<u64> {
        match ENCODING_OF_DWARF.get(usize::from(register.0)) {
            Some(index) => Some(self.general[*index]),
            None if register == RETURN_ADDRESS => Some(self.rip),
            None => None,
        }
    }

    /// Which of the general registers has this DWARF number.
    pub(crate) fn number_of(register: gimli::Register) -> Option<usize> {
        ENCODING_OF_DWARF.get(usize::from(register.0)).copied()
    }

    pub(crate) fn set_dwarf(&mut self, register: gimli::Register, value: u64) {
        match ENCODING_OF_DWARF.get(usize::from(register.0)) {
            Some(index) => self.general[*index] = value,
            None if register == RETURN_ADDRESS => self.rip = value,
            None => {}
        }
    }
}

/// The registers of a thread stopped under ptrace.
impl From<&libc::user_regs_struct> for Registers {
    fn from(regs: &libc::user_regs_struct) -> Self {
        Registers {
            general: [
                regs.rax, regs.rcx, regs.rdx, regs.rbx, regs.rsp, regs.rbp, regs.rsi, regs.rdi,
                regs.r8, regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
            ],
            rip: regs.rip,
        }
    }
}
