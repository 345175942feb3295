//! Live-outs of the two orders, compared (paper 000, section 4.2).

use crate::after::Fate;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use vm::Vm;
use vm::context::reg;

/// How many differences are kept; more say nothing new.
const MOST_DIFFERENCES: usize = 64;

/// Bytes below the stack pointer that the ABI lets a leaf function use.
const RED_ZONE: u64 = 128;

/// A place whose contents depend on the order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    pub location: Location,
    /// Contents with the accesses in recorded order, and swapped.
    pub recorded: Vec<u8>,
    pub swapped: Vec<u8>,
    /// What became of it afterwards.
    #[serde(default)]
    pub fate: Fate,
    /// Offset of the first byte that differs.
    #[serde(default)]
    pub first: u8,
    /// What is there, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Difference {
    fn new(location: Location, recorded: Vec<u8>, swapped: Vec<u8>) -> Self {
        Difference {
            location,
            recorded,
            swapped,
            fate: Fate::Unknown,
            first: 0,
            name: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Location {
    /// A value in memory.
    Memory(u64),
    Register {
        thread: u32,
        name: String,
    },
    /// The thread exited, or the process died, in one order only.
    Thread(u32),
}

/// What one order leaves behind.
#[derive(Serialize, Deserialize)]
pub struct Left {
    /// General registers and rip per thread; none for a thread that is gone.
    registers: Vec<(u32, Option<Vec<u64>>)>,
    /// Aligned words of eight bytes that were written to and what they hold
    /// now, by address; `None` where unmapped since. Bytes of a word that were
    /// not written are as they were, so words can be compared whole.
    memory: Vec<(u64, Option<u64>)>,
}

fn word_at(address: u64) -> Option<u64> {
    vm::memory::get::<u64>(address).ok()
}

impl Left {
    /// What is there now; `written` are addresses of words, in order.
    pub fn behind(vm: &Vm, threads: [u32; 2], written: Vec<u64>) -> Left {
        let mut dead = Vec::new();
        let registers = threads
            .into_iter()
            .map(|thread| {
                let alive = vm.threads.contains_key(&thread);
                let registers = vm.registers(thread).filter(|_| alive).map(|regs| {
                    let stack = regs.gpr[reg::RSP];
                    if let Some((range, _)) = vm.space.find(stack) {
                        dead.push(range.start..stack.saturating_sub(RED_ZONE));
                    }
                    let mut values = regs.gpr.to_vec();
                    values.push(regs.rip);
                    values
                });
                (thread, registers)
            })
            .collect();
        let memory = written
            .into_iter()
            .filter(|address| !dead.iter().any(|range| range.contains(address)))
            .map(|address| (address, word_at(address)))
            .collect();
        Left { registers, memory }
    }

    /// What this order has at the address of a word: what it left there, else
    /// what the race point has, which this process is.
    fn word(&self, address: u64) -> Option<u64> {
        match self.memory.binary_search_by_key(&address, |(at, _)| *at) {
            Ok(index) => self.memory[index].1,
            Err(_) => word_at(address),
        }
    }

    fn byte(&self, address: u64) -> Option<u8> {
        let word = self.word(address & !7)?;
        Some(word.to_le_bytes()[(address & 7) as usize])
    }
}

/// Where the two orders differ. A byte written in one order only is compared
/// with what the other order has there, which is what the race point had; it is
/// read from this process, which is the race point.
///
/// Differing bytes are shown as parts of whole values: the racy place as it is,
/// all else as aligned words.
pub fn differences(recorded: &Left, swapped: &Left, racy: Range<u64>) -> Vec<Difference> {
    let mut differences = Vec::new();
    for ((thread, one), (_, other)) in recorded.registers.iter().zip(&swapped.registers) {
        match (one, other) {
            (Some(one), Some(other)) => {
                for (index, (one, other)) in one.iter().zip(other).enumerate() {
                    if one != other {
                        differences.push(Difference::new(
                            Location::Register {
                                thread: *thread,
                                name: reg::NAMES.get(index).unwrap_or(&"rip").to_string(),
                            },
                            one.to_le_bytes().to_vec(),
                            other.to_le_bytes().to_vec(),
                        ));
                    }
                }
            }
            (None, None) => {}
            _ => differences.push(Difference::new(
                Location::Thread(*thread),
                vec![u8::from(one.is_some())],
                vec![u8::from(other.is_some())],
            )),
        }
    }
    let mut words: Vec<u64> = recorded
        .memory
        .iter()
        .chain(&swapped.memory)
        .map(|(address, _)| *address)
        .collect();
    words.sort_unstable();
    words.dedup();
    let differing = words
        .into_iter()
        .filter(|word| recorded.word(*word) != swapped.word(*word))
        .flat_map(|word| word..word + 8)
        .filter(|address| recorded.byte(*address) != swapped.byte(*address));
    let mut shown = 0;
    for address in differing {
        if address < shown {
            continue;
        }
        if differences.len() >= MOST_DIFFERENCES {
            break;
        }
        let whole = if racy.contains(&address) && racy.end - racy.start <= 8 {
            racy.clone()
        } else {
            address & !7..(address & !7) + 8
        };
        shown = whole.end;
        let bytes = |left: &Left| -> Vec<u8> {
            whole
                .clone()
                .map(|address| left.byte(address).unwrap_or(0))
                .collect()
        };
        let mut difference = Difference::new(
            Location::Memory(whole.start),
            bytes(recorded),
            bytes(swapped),
        );
        difference.first = (address - whole.start) as u8;
        differences.push(difference);
    }
    differences
}
