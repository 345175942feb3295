//! Live-outs of the two orders, compared (paper 000, section 4.2).

use crate::after::Fate;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
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
    /// Bytes written and what they hold now; `None` where unmapped since.
    memory: BTreeMap<u64, Option<u8>>,
}

impl Left {
    pub fn behind(vm: &Vm, threads: [u32; 2], written: BTreeSet<u64>) -> Left {
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
            .map(|address| (address, vm::memory::get::<u8>(address).ok()))
            .collect();
        Left { registers, memory }
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
    let addresses: BTreeSet<u64> = recorded
        .memory
        .keys()
        .chain(swapped.memory.keys())
        .copied()
        .collect();
    let held = |left: &Left, address: u64| match left.memory.get(&address) {
        Some(byte) => *byte,
        None => vm::memory::get::<u8>(address).ok(),
    };
    let mut shown = 0;
    for address in addresses {
        if address < shown || held(recorded, address) == held(swapped, address) {
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
                .map(|address| held(left, address).unwrap_or(0))
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
