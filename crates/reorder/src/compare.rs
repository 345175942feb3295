//! Live-outs of the two orders, compared (paper 000, section 4.2): registers
//! of both threads, and all memory that either order has written.
//!
//! Deviation: an access may be a system call here, so what the kernel keeps for
//! the program is compared as well (`vm::kernel::KernelState`), but for time.

use crate::after::Fate;
use crate::pages::{PAGE, Page};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use vm::Vm;
use vm::context::reg;
use vm::kernel::{KernelState, Part};

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
    /// What the kernel keeps for the program.
    Kernel(Part),
}

/// What one order leaves behind, besides memory.
#[derive(Serialize, Deserialize)]
pub struct Left {
    /// General registers and rip per thread, then the vector registers; none
    /// for a thread that is gone. Flags are left out: at a sequencer they are
    /// those of a comparison that is over, or of a value that is compared.
    registers: Vec<(u32, Option<Values>)>,
    /// Parts of stacks below the stack pointer.
    dead: Vec<Range<u64>>,
    kernel: KernelState,
}

#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Values {
    general: Vec<u64>,
    vector: Vec<u64>,
}

impl Left {
    /// What is there now.
    pub fn behind(vm: &Vm, threads: [u32; 2]) -> Left {
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
                    let mut general = regs.gpr.to_vec();
                    general.push(regs.rip);
                    Values {
                        general,
                        vector: vm.vector_words(thread),
                    }
                });
                (thread, registers)
            })
            .collect();
        Left {
            registers,
            dead,
            kernel: vm.kernel_state().without_time(),
        }
    }

    fn is_dead(&self, address: u64) -> bool {
        self.dead.iter().any(|range| range.contains(&address))
    }
}

/// Where the two orders differ. `recorded` comes with the pages that may have
/// other contents there; this process has what the swapped order left.
///
/// Differing bytes are shown as parts of whole values: the racy place as it is,
/// all else as aligned words.
pub fn differences(
    recorded: &Left,
    pages: &[Page],
    swapped: &Left,
    racy: Range<u64>,
) -> Vec<Difference> {
    let mut differences = Vec::new();
    for ((thread, one), (_, other)) in recorded.registers.iter().zip(&swapped.registers) {
        match (one, other) {
            (Some(one), Some(other)) => registers(*thread, one, other, &mut differences),
            (None, None) => {}
            _ => differences.push(Difference::new(
                Location::Thread(*thread),
                vec![u8::from(one.is_some())],
                vec![u8::from(other.is_some())],
            )),
        }
    }
    for (part, digests) in recorded.kernel.differences(&swapped.kernel) {
        let [one, other] = digests.map(|digest| digest.to_le_bytes().to_vec());
        differences.push(Difference::new(Location::Kernel(part), one, other));
    }
    for page in pages {
        let here = vm::memory::read_vec(page.address, PAGE).ok();
        if page.bytes.is_none() && here.is_none() {
            continue;
        }
        // What one order has unmapped counts as zero there.
        let zero = vec![0; PAGE];
        let one = page.bytes.as_ref().unwrap_or(&zero);
        let other = here.as_ref().unwrap_or(&zero);
        let mut shown = 0;
        for offset in 0..PAGE {
            let address = page.address + offset as u64;
            if one[offset] == other[offset]
                || address < shown
                || recorded.is_dead(address)
                || swapped.is_dead(address)
            {
                continue;
            }
            if differences.len() >= MOST_DIFFERENCES {
                return differences;
            }
            let inside = racy.start >= page.address && racy.end <= page.address + PAGE as u64;
            let whole = if racy.contains(&address) && racy.end - racy.start <= 8 && inside {
                racy.clone()
            } else {
                address & !7..(address & !7) + 8
            };
            shown = whole.end;
            let within = (whole.start - page.address) as usize..(whole.end - page.address) as usize;
            let mut difference = Difference::new(
                Location::Memory(whole.start),
                one[within.clone()].to_vec(),
                other[within].to_vec(),
            );
            difference.first = (address - whole.start) as u8;
            differences.push(difference);
        }
    }
    differences
}

fn registers(thread: u32, one: &Values, other: &Values, differences: &mut Vec<Difference>) {
    let mut differs = |name: String, one: Vec<u8>, other: Vec<u8>| {
        let location = Location::Register { thread, name };
        differences.push(Difference::new(location, one, other));
    };
    for (index, (one, other)) in one.general.iter().zip(&other.general).enumerate() {
        if one != other {
            let name = reg::NAMES.get(index).unwrap_or(&"rip").to_string();
            differs(
                name,
                one.to_le_bytes().to_vec(),
                other.to_le_bytes().to_vec(),
            );
        }
    }
    let mut word = 0;
    while word < one.vector.len().min(other.vector.len()) {
        if one.vector[word] == other.vector[word] {
            word += 1;
            continue;
        }
        let (name, words) = vm::state::vector_name(word);
        let bytes = |values: &Values| -> Vec<u8> {
            let words = values.vector.get(words.clone()).unwrap_or_default();
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        differs(name, bytes(one), bytes(other));
        word = words.end;
    }
}
