//! Text without an allocator: a buffer that is written out when full.

use crate::sys;

pub struct Text {
    fd: i32,
    used: usize,
    buffer: [u8; 1024],
}

impl Text {
    pub fn to(fd: i32) -> Self {
        Text {
            fd,
            used: 0,
            buffer: [0; 1024],
        }
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        for &byte in bytes {
            if self.used == self.buffer.len() {
                self.flush();
            }
            if let Some(place) = self.buffer.get_mut(self.used) {
                *place = byte;
                self.used += 1;
            }
        }
        self
    }

    pub fn str(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    pub fn number(&mut self, mut value: u64) -> &mut Self {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            if let Some(digit) = digits.get_mut(at) {
                *digit = b'0' + (value % 10) as u8;
            }
            value /= 10;
            if value == 0 {
                break;
            }
        }
        for digit in digits.iter().skip(at) {
            self.bytes(&[*digit]);
        }
        self
    }

    pub fn hex(&mut self, value: u64) -> &mut Self {
        self.str("0x");
        let mut started = false;
        for shift in (0..16).rev() {
            let digit = (value >> (shift * 4) & 15) as usize;
            if digit != 0 || started || shift == 0 {
                started = true;
                self.bytes(&[b"0123456789abcdef"[digit]]);
            }
        }
        self
    }

    pub fn flush(&mut self) {
        let used = core::mem::take(&mut self.used);
        sys::write_all(self.fd, self.buffer.get(..used).unwrap_or(&[]));
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Length of a zero-terminated string.
///
/// # Safety
/// The string must be readable up to its zero.
pub unsafe fn length(text: *const u8) -> usize {
    let mut count = 0;
    // SAFETY: the caller's promise.
    while unsafe { text.add(count).read_volatile() } != 0 {
        count += 1;
    }
    count
}
