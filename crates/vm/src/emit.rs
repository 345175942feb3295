//! A small assembler for the instructions the vm itself puts into the cache.
//!
//! Bytes are collected in a buffer whose final address is known from the
//! start, so RIP-relative operands and jumps can be encoded at once.

use crate::layout;

pub struct Emitter {
    pub base: u64,
    pub bytes: Vec<u8>,
}

/// A register number in the machine's encoding.
pub type Reg = usize;

impl Emitter {
    pub fn new(base: u64) -> Self {
        Emitter {
            base,
            bytes: Vec::with_capacity(512),
        }
    }

    /// Address of the next byte.
    pub fn here(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn rel32(&mut self, target: u64) {
        let distance = target.wrapping_sub(self.here() + 4) as i64;
        debug_assert_eq!(distance, i64::from(distance as i32));
        self.raw(&(distance as i32).to_le_bytes());
    }

    /// ModRM and displacement of a RIP-relative operand, `trailing` bytes of
    /// immediate before the end of the instruction.
    fn rip_operand(&mut self, field: Reg, target: u64, trailing: u64) {
        self.bytes.push(((field as u8 & 7) << 3) | 5);
        let distance = target.wrapping_sub(self.here() + 4 + trailing) as i64;
        debug_assert_eq!(distance, i64::from(distance as i32));
        self.raw(&(distance as i32).to_le_bytes());
    }

    fn rex_w(&mut self, reg: Reg, rm: Reg) {
        self.bytes
            .push(0x48 | ((reg as u8 >> 3) << 2) | (rm as u8 >> 3));
    }

    /// Address of a field of the context.
    pub fn field(offset: usize) -> u64 {
        layout::CONTEXT + offset as u64
    }

    /// `mov [address], reg`
    pub fn store(&mut self, address: u64, reg: Reg) {
        self.rex_w(reg, 0);
        self.bytes.push(0x89);
        self.rip_operand(reg, address, 0);
    }

    /// `mov reg, [address]`
    pub fn load(&mut self, reg: Reg, address: u64) {
        self.rex_w(reg, 0);
        self.bytes.push(0x8b);
        self.rip_operand(reg, address, 0);
    }

    /// `mov reg32, [address]`
    pub fn load32(&mut self, reg: Reg, address: u64) {
        if reg >= 8 {
            self.bytes.push(0x44);
        }
        self.bytes.push(0x8b);
        self.rip_operand(reg, address, 0);
    }

    /// `movzx reg32, word [address]`
    pub fn load16(&mut self, reg: Reg, address: u64) {
        if reg >= 8 {
            self.bytes.push(0x44);
        }
        self.raw(&[0x0f, 0xb7]);
        self.rip_operand(reg, address, 0);
    }

    /// `mov dword [address], imm32`
    pub fn store_imm32(&mut self, address: u64, value: u32) {
        self.bytes.push(0xc7);
        self.rip_operand(0, address, 4);
        self.raw(&value.to_le_bytes());
    }

    /// `mov qword [address], imm32` (sign-extended)
    pub fn store_imm64(&mut self, address: u64, value: i32) {
        self.raw(&[0x48, 0xc7]);
        self.rip_operand(0, address, 4);
        self.raw(&value.to_le_bytes());
    }

    /// `<operation> reg, [address]`: changes the flags.
    pub fn combine(&mut self, operation: Combine, reg: Reg, address: u64) {
        self.rex_w(reg, 0);
        self.bytes.push(operation as u8);
        self.rip_operand(reg, address, 0);
    }

    /// `<group 1 or 2> reg, imm8`: changes the flags.
    pub fn combine_imm8(&mut self, opcode: u8, operation: u8, reg: Reg, value: u8) {
        self.rex_w(0, reg);
        self.raw(&[opcode, 0xc0 | (operation << 3) | (reg as u8 & 7), value]);
    }

    /// `<opcode> field, gs:[index << log + displacement]`
    pub fn gs_scaled(&mut self, opcode: u8, field: Reg, index: Reg, log: u8, displacement: u32) {
        debug_assert_ne!(index, 4, "rsp cannot be an index");
        let rex = 0x48 | ((field as u8 >> 3) << 2) | ((index as u8 >> 3) << 1);
        self.raw(&[0x65, rex, opcode, ((field as u8 & 7) << 3) | 4]);
        self.bytes.push((log << 6) | ((index as u8 & 7) << 3) | 5);
        self.raw(&displacement.to_le_bytes());
    }

    /// `cmp qword gs:[index << log + displacement], 0`
    pub fn gs_scaled_is_zero(&mut self, index: Reg, log: u8, displacement: u32) {
        const COMPARE: Reg = 7;
        self.gs_scaled(0x83, COMPARE, index, log, displacement);
        self.bytes.push(0);
    }

    /// `mov reg, imm`, in the shortest form.
    pub fn load_imm(&mut self, reg: Reg, value: u64) {
        if let Ok(small) = u32::try_from(value) {
            if reg >= 8 {
                self.bytes.push(0x41);
            }
            self.bytes.push(0xb8 | (reg as u8 & 7));
            self.raw(&small.to_le_bytes());
        } else {
            self.bytes.push(0x48 | (reg as u8 >> 3));
            self.bytes.push(0xb8 | (reg as u8 & 7));
            self.raw(&value.to_le_bytes());
        }
    }

    /// `lea reg, [rip + …]`; returns the address of its displacement, for
    /// patching.
    pub fn load_address_of_later(&mut self, reg: Reg) -> u64 {
        self.rex_w(reg, 0);
        self.raw(&[0x8d, ((reg as u8 & 7) << 3) | 5, 0, 0, 0, 0]);
        self.here() - 4
    }

    /// `mov to, from`
    pub fn move_reg(&mut self, to: Reg, from: Reg) {
        self.rex_w(from, to);
        self.bytes.push(0x89);
        self.bytes
            .push(0xc0 | ((from as u8 & 7) << 3) | (to as u8 & 7));
    }

    /// `sub qword [address], imm8/imm32`: changes the flags.
    pub fn sub_memory(&mut self, address: u64, value: u32) {
        self.arithmetic_memory(5, address, value);
    }

    /// `cmp qword [address], imm`: changes the flags.
    pub fn compare_memory(&mut self, address: u64, value: u32) {
        self.arithmetic_memory(7, address, value);
    }

    fn arithmetic_memory(&mut self, operation: Reg, address: u64, value: u32) {
        self.bytes.push(0x48);
        if value < 128 {
            self.bytes.push(0x83);
            self.rip_operand(operation, address, 1);
            self.bytes.push(value as u8);
        } else {
            self.bytes.push(0x81);
            self.rip_operand(operation, address, 4);
            self.raw(&value.to_le_bytes());
        }
    }

    /// `jmp target`; returns the address of its displacement, for patching.
    pub fn jump(&mut self, target: u64) -> u64 {
        self.bytes.push(0xe9);
        let at = self.here();
        self.rel32(target);
        at
    }

    /// `jcc target` with the machine's condition number; returns the address
    /// of its displacement.
    pub fn jump_if(&mut self, condition: u8, target: u64) -> u64 {
        self.raw(&[0x0f, 0x80 | condition]);
        let at = self.here();
        self.rel32(target);
        at
    }

    /// Makes the rel32 at address `at` (in this buffer) point to `target`.
    pub fn patch_rel32(&mut self, at: u64, target: u64) {
        let distance = target.wrapping_sub(at + 4) as i64;
        debug_assert_eq!(distance, i64::from(distance as i32));
        let index = (at - self.base) as usize;
        self.bytes[index..index + 4].copy_from_slice(&(distance as i32).to_le_bytes());
    }

    /// Makes the rel8 at address `at` (in this buffer) point to here.
    pub fn patch_rel8_here(&mut self, at: u64) {
        let distance = self.here() - (at + 1);
        debug_assert!(distance < 128);
        let index = (at - self.base) as usize;
        self.bytes[index] = distance as u8;
    }

    /// `jmp [address]`
    pub fn jump_memory(&mut self, address: u64) {
        self.bytes.push(0xff);
        self.rip_operand(4, address, 0);
    }

    /// `push [address]`
    pub fn push_memory(&mut self, address: u64) {
        self.bytes.push(0xff);
        self.rip_operand(6, address, 0);
    }

    /// `push imm32` (sign-extended)
    pub fn push_imm32(&mut self, value: i32) {
        self.bytes.push(0x68);
        self.raw(&value.to_le_bytes());
    }

    /// `pop reg`
    pub fn pop(&mut self, reg: Reg) {
        if reg >= 8 {
            self.bytes.push(0x41);
        }
        self.bytes.push(0x58 | (reg as u8 & 7));
    }
}

/// Opcodes of `<operation> r64, r/m64`.
#[derive(Clone, Copy)]
pub enum Combine {
    And = 0x23,
    Xor = 0x33,
    Compare = 0x3b,
}

pub mod condition {
    pub const EQUAL: u8 = 0x4;
    pub const NOT_EQUAL: u8 = 0x5;
    pub const SIGN: u8 = 0x8;
    pub const NOT_ABOVE: u8 = 0x6;
    pub const ABOVE: u8 = 0x7;
}
