//! `DEADHEAT_IFR`: comma-separated settings.
//!
//! * `sample=N`     monitors run N % of the time, in windows (paper 004, section
//!   4.4)
//! * `cap=N`        at most N monitors per site and thread since its last
//!   release, refilled by time; `cap=0` is no cap (the default)
//! * `budget=N`     monitors rest while the time in the run-time is above N % of
//!   the time its threads had
//! * `signal=N`     signal N prints what was found so far, and the program goes
//!   on
//! * `exitcode=N`   what a program with races exits with if it would exit with
//!   0 (default 66; 0 leaves it alone)
//! * `json=FILE`    also write the report as JSON
//! * `stats=1`      print how many monitors were started
//! * `off=1`        no monitors at all

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

pub static SAMPLE: AtomicU32 = AtomicU32::new(100);
pub static CAP: AtomicU32 = AtomicU32::new(0);
pub static BUDGET: AtomicU32 = AtomicU32::new(0);
pub static SIGNAL: AtomicU32 = AtomicU32::new(0);
pub static EXIT_CODE: AtomicU32 = AtomicU32::new(66);
pub static STATS: AtomicU32 = AtomicU32::new(0);
pub static OFF: AtomicU32 = AtomicU32::new(0);
/// Start and length of the JSON file's name, inside the environment block.
pub static JSON: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
pub static JSON_LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Room for the JSON file's name and the 0 behind it: what Linux opens.
pub const LONGEST_NAME: usize = 4096;

fn number(text: &[u8]) -> Option<u32> {
    let mut value = 0u32;
    if text.is_empty() {
        return None;
    }
    for &byte in text {
        if !byte.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u32::from(byte - b'0'))?;
    }
    Some(value)
}

/// Reads the settings; gives back the first piece that is not one.
pub fn read(text: &'static [u8]) -> Result<(), &'static [u8]> {
    for piece in text.split(|&byte| byte == b',') {
        if piece.is_empty() {
            continue;
        }
        let mut halves = piece.splitn(2, |&byte| byte == b'=');
        let (Some(key), Some(value)) = (halves.next(), halves.next()) else {
            return Err(piece);
        };
        let target = match key {
            b"sample" => &SAMPLE,
            b"cap" => &CAP,
            b"budget" => &BUDGET,
            b"signal" => &SIGNAL,
            b"exitcode" => &EXIT_CODE,
            b"stats" => &STATS,
            b"off" => &OFF,
            b"json" => {
                if value.is_empty() || value.len() >= LONGEST_NAME {
                    return Err(piece);
                }
                JSON.store(value.as_ptr().cast_mut(), Ordering::Relaxed);
                JSON_LENGTH.store(value.len(), Ordering::Relaxed);
                continue;
            }
            _ => return Err(piece),
        };
        let value = number(value).ok_or(piece)?;
        let most = match key {
            b"sample" | b"budget" => 100,
            b"exitcode" => 255,
            b"signal" => 64,
            _ => u32::MAX,
        };
        if value > most {
            return Err(piece);
        }
        target.store(value, Ordering::Relaxed);
    }
    Ok(())
}
