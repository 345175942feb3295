//! Reads that see what nobody wrote: half of an old value and half of a new
//! one, or memory that no value was ever put into (paper 003, section 7: wide
//! accesses are not atomic).
//!
//! A value is torn if it is stored or loaded in pieces, and the other side
//! comes between two of them. Both threads are poised at the race point, so
//! what each does next is tried there: pieces are accesses of the same
//! statement (by its line in the debug info, else by the function) to
//! neighbouring bytes. A tear is only said where the value read would be
//! neither the old nor the new one. What one instruction loads or stores is
//! one piece here, but the processor may split it where it crosses a cache
//! line or is wider than eight bytes; that is said in so many words.
//!
//! Memory is uninitialised at the race if its heap block came from an
//! allocator that does not clear and no byte of the access was written since.

use super::allocators::{self, Followed};
use super::functions_in;
use super::heap::Heap;
use super::shadow::Marks;
use crate::{Occurrence, Poised, names};
use race::Moment;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use symbols::ModuleMap;
use vm::Vm;
use vm::context::Registers;
use vm::observe::known::Compare;
use vm::observe::{AccessEvent, AfterHook, Interest, Observer, SyscallEvent};
use vm::snapshot::Limits;

/// Instructions in which a statement's pieces are looked for.
const WINDOW: u64 = 64;

/// Bytes of a value that are compared.
const LARGEST: u64 = 4096;

const CACHE_LINE: u64 = 64;

/// What a read of the race can see besides the values that were written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mixed {
    /// A label of `race::labels`.
    pub label: String,
    /// One sentence.
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Piece {
    count: u64,
    pc: u64,
    address: u64,
    size: u64,
    read: bool,
    write: bool,
}

impl Piece {
    fn end(&self) -> u64 {
        self.address + self.size
    }
}

struct Pieces {
    thread: u32,
    found: Rc<RefCell<Vec<Piece>>>,
}

impl Observer for Pieces {
    fn interest(&self) -> Interest {
        Interest {
            accesses: true,
            ..Interest::default()
        }
    }

    fn accesses(&mut self, batch: &[AccessEvent]) {
        let mut found = self.found.borrow_mut();
        for access in batch
            .iter()
            .filter(|access| access.moment.thread == self.thread)
        {
            found.push(Piece {
                count: access.moment.count,
                pc: access.pc,
                address: access.address,
                size: u64::from(access.size),
                read: access.read,
                write: access.write,
            });
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// What a thread accesses next, alone, up to its next synchronisation.
fn pieces(vm: &mut Vm, thread: u32) -> Vec<Piece> {
    let copy = vm.copy(Limits::default(), |vm| {
        let found = Rc::new(RefCell::new(Vec::new()));
        vm.observe(Box::new(Pieces {
            thread,
            found: found.clone(),
        }));
        vm.run_thread(thread, WINDOW, true)?;
        vm.take_observers();
        Ok(found.take())
    });
    match copy.and_then(|running| running.join()) {
        Ok(Ok(pieces)) => pieces,
        _ => Vec::new(),
    }
}

/// The pieces that belong to one statement with the first.
fn statement(
    modules: &ModuleMap,
    pieces: &[Piece],
    racing: Moment,
    wanted: impl Fn(&Piece) -> bool,
) -> Vec<Piece> {
    let line = |pc: u64| {
        let frames = modules.frames(pc, false);
        let frame = frames.first();
        let known = frame.and_then(|frame| frame.line);
        match known {
            Some(line) => u64::from(line),
            None => modules
                .function_at(pc)
                .map_or(pc, |function| function.start),
        }
    };
    let Some(first) = pieces
        .iter()
        .find(|piece| piece.count == racing.count && wanted(piece))
    else {
        return Vec::new();
    };
    let own = line(first.pc);
    let mut group = vec![*first];
    let (mut from, mut to) = (first.address, first.end());
    // Pieces may come in any order; each must lie beside what is there already.
    // The same bytes again, or the same instruction again, are another time
    // round a loop, and another value.
    loop {
        let next = pieces.iter().find(|piece| {
            piece.count > racing.count
                && wanted(piece)
                && (piece.address == to || piece.end() == from)
                && group.iter().all(|known| known.pc != piece.pc)
                && line(piece.pc) == own
        });
        let Some(next) = next else {
            break;
        };
        from = from.min(next.address);
        to = to.max(next.end());
        group.push(*next);
    }
    group
}

fn extent(group: &[Piece]) -> Range<u64> {
    let from = group.iter().map(|piece| piece.address).min().unwrap_or(0);
    let to = group.iter().map(Piece::end).max().unwrap_or(0);
    from..to
}

fn common(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    one.start.max(other.start)..one.end.min(other.end)
}

/// The bytes there after `thread` has run so many instructions alone.
fn after(vm: &mut Vm, thread: u32, instructions: u64, range: &Range<u64>) -> Option<Vec<u8>> {
    let length = (range.end - range.start) as usize;
    let copy = vm.copy(Limits::default(), |vm| {
        if instructions > 0 {
            vm.run_thread(thread, instructions, false)?;
        }
        Ok(vm::memory::read_vec(range.start, length).ok())
    });
    copy.and_then(|running| running.join()).ok()?.ok()?
}

fn hex(bytes: &[u8]) -> String {
    // As a number, most significant byte first.
    bytes
        .iter()
        .rev()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// At the race point: can the read see a mixture?
/// `unborn`: nothing was written there yet.
pub fn look(vm: &mut Vm, poised: Poised, occurrence: Occurrence, unborn: bool) -> Vec<Mixed> {
    if occurrence.second_by_moment {
        return Vec::new();
    }
    let modules = names::modules(vm);
    let sides = [poised.first, poised.second];
    let seen = sides.map(|moment| pieces(vm, moment.thread));
    let mut mixed = Vec::new();
    for (reader, writer) in [(0, 1), (1, 0)] {
        let reads = statement(&modules, &seen[reader], sides[reader], |piece| piece.read);
        let writes = statement(&modules, &seen[writer], sides[writer], |piece| piece.write);
        let (Some(first_read), Some(first_write)) = (reads.first(), writes.first()) else {
            continue;
        };
        let range = common(&extent(&reads), &extent(&writes));
        let race = common(
            &(first_read.address..first_read.end()),
            &(first_write.address..first_write.end()),
        );
        if range.is_empty() || race.is_empty() || range.end - range.start > LARGEST {
            continue;
        }
        if unborn && !first_read.write {
            mixed.push(without_value(sides[reader].thread, reader == 0));
        }
        let place = names::variable(&modules, race.start, race.end - race.start);
        let at = [first_read, first_write]
            .map(|piece| names::own_place(&modules.frames(piece.pc, false)));
        if let Some(text) = torn(
            vm,
            (sides[reader], &reads),
            (sides[writer], &writes),
            &range,
        ) {
            mixed.push(Mixed {
                label: race::labels::TORN_READ.to_string(),
                text: format!("{text} ({place}: read at {}, written at {})", at[0], at[1]),
            });
        } else if race.end - race.start > 8
            || race.start / CACHE_LINE != (race.end - 1) / CACHE_LINE
        {
            let why = if race.start / CACHE_LINE != (race.end - 1) / CACHE_LINE {
                "it crosses a cache line"
            } else {
                "it is wider than eight bytes"
            };
            mixed.push(Mixed {
                label: race::labels::TORN_READ.to_string(),
                text: format!(
                    "the processor may split the access, because {why}: {place}, read at {}, may \
                     be half old and half new",
                    at[0]
                ),
            });
        }
    }
    mixed
}

type Side<'a> = (Moment, &'a [Piece]);

fn torn(vm: &mut Vm, reader: Side<'_>, writer: Side<'_>, range: &Range<u64>) -> Option<String> {
    let (read_moment, reads) = reader;
    let (write_moment, writes) = writer;
    if reads.len() == 1 && writes.len() == 1 {
        return None;
    }
    let last_write = writes.iter().map(|piece| piece.count).max()?;
    let whole = last_write + 1 - write_moment.count;
    let old = after(vm, write_moment.thread, 0, range)?;
    let new = after(vm, write_moment.thread, whole, range)?;
    let bytes = range.end - range.start;
    let is_mixed = |value: &[u8]| value != old && value != new;
    // The reader comes after the writer's first piece.
    let between = after(vm, write_moment.thread, 1, range)?;
    if writes.len() > 1 && is_mixed(&between) {
        return Some(format!(
            "torn read: the {bytes} bytes are written in {} pieces, and thread {} can read {} \
             between them, which is neither the old value {} nor the new {}",
            writes.len(),
            read_moment.thread,
            hex(&between),
            hex(&old),
            hex(&new)
        ));
    }
    // The writer comes after the reader's first piece.
    let first = reads.first()?;
    let mut value = new.clone();
    let early = common(&(first.address..first.end()), range);
    for address in early {
        let index = (address - range.start) as usize;
        value[index] = old[index];
    }
    // Bytes that the reader does not read are no part of what it sees.
    for (index, address) in (0..).zip(range.clone()) {
        if !reads
            .iter()
            .any(|piece| (piece.address..piece.end()).contains(&address))
        {
            let index: usize = index;
            value[index] = new[index];
        }
    }
    (reads.len() > 1 && is_mixed(&value)).then(|| {
        format!(
            "torn read: the {bytes} bytes are read in {} pieces, and thread {} can write between \
             them, so that {} is read, which is neither the old value {} nor the new {}",
            reads.len(),
            write_moment.thread,
            hex(&value),
            hex(&old),
            hex(&new)
        )
    })
}

/// Which bytes of the racy granules have been written since they were
/// allocated.
struct Births {
    heap: Heap,
    names: Vec<(String, Followed)>,
    functions: HashMap<u64, Followed>,
    modules: ModuleMap,
    /// Racy granules: what was written, and in which block.
    written: HashMap<u64, (Option<Moment>, u8)>,
    /// First accesses of races.
    firsts: HashMap<(u32, u64), (u64, u32)>,
    unborn: Rc<RefCell<BTreeSet<Moment>>>,
}

fn mask(granule: u64, address: u64, size: u64) -> u8 {
    (0..8).fold(0, |mask, bit| {
        let byte = granule * 8 + bit;
        let inside = address <= byte && byte < address + size;
        mask | (u8::from(inside) << bit)
    })
}

impl Births {
    fn note(&mut self, access: &AccessEvent) {
        let size = u64::from(access.size.max(1));
        let key = (access.moment.thread, access.moment.count);
        if let Some((address, size)) = self.firsts.get(&key).copied() {
            let block = self.heap.block_at(address);
            let size = u64::from(size.max(1));
            if let Some(block) = block
                && !block.zeroed
                && (address / 8..=(address + size - 1) / 8).all(|granule| {
                    self.written.get(&granule).is_some_and(|(block_of, bytes)| {
                        *block_of != Some(block.allocated)
                            || bytes & mask(granule, address, size) == 0
                    })
                })
            {
                let moment = Moment::new(key.0, key.1);
                self.unborn.borrow_mut().insert(moment);
            }
        }
        if !access.write {
            return;
        }
        for granule in access.address / 8..=(access.address + size - 1) / 8 {
            let Some(entry) = self.written.get_mut(&granule) else {
                continue;
            };
            let block = self
                .heap
                .block_at(access.address)
                .map(|block| block.allocated);
            if entry.0 != block {
                *entry = (block, 0);
            }
            entry.1 |= mask(granule, access.address, size);
        }
    }
}

impl Observer for Births {
    fn interest(&self) -> Interest {
        Interest {
            accesses: true,
            only_unknown: true,
            stack: false,
        }
    }

    fn known_by(&self, _thread: u32) -> Compare {
        Compare::Zero
    }

    fn accesses(&mut self, batch: &[AccessEvent]) {
        for access in batch {
            self.note(access);
        }
    }

    fn kernel_access(&mut self, moment: Moment, address: u64, size: u64, write: bool) {
        self.note(&AccessEvent::by_kernel(moment, address, size, write));
    }

    fn syscall(&mut self, event: &SyscallEvent, _registers: &Registers) {
        self.heap.system_call(
            event.moment.thread,
            event.number,
            &event.arguments,
            event.result,
        );
    }

    fn code_mapped(&mut self, range: Range<u64>, path: &Path, offset: u64) -> Vec<u64> {
        self.modules.insert(range.clone(), path, offset);
        let found = functions_in(
            &self.modules,
            &range,
            path,
            self.names.iter().map(|(name, _)| name),
        );
        let mut pcs = Vec::new();
        for (name, pc) in found {
            if let Some((_, followed)) = self.names.iter().find(|(known, _)| known == name) {
                self.functions.insert(pc, *followed);
                pcs.push(pc);
            }
        }
        pcs
    }

    fn unmapped(&mut self, _moment: Moment, range: Range<u64>) {
        self.heap.unmapped(&range);
    }

    fn hook(&mut self, moment: Moment, registers: &Registers) -> AfterHook {
        match self.functions.get(&registers.rip) {
            Some(followed) => self.heap.called(*followed, moment, registers, false).0,
            None => AfterHook::Nothing,
        }
    }

    fn returned(&mut self, moment: Moment, function: u64, registers: &Registers) {
        self.heap.returned(function, moment, registers);
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Follows a replay to see which first accesses of races find memory that
/// nothing was written to.
pub fn watch_births(
    vm: &mut Vm,
    occurrences: &[Occurrence],
) -> Result<Rc<RefCell<BTreeSet<Moment>>>, std::io::Error> {
    let mut marks = Marks::install()?;
    let mut written = HashMap::new();
    let mut firsts = HashMap::new();
    for occurrence in occurrences {
        let instance = occurrence.instance;
        let end = instance.address + u64::from(instance.size.max(1));
        for granule in instance.address / 8..end.div_ceil(8) {
            written.insert(granule, (None, 0));
        }
        marks.set(instance.address..end);
        firsts.insert(
            (instance.first.thread, instance.first.count),
            (instance.address, instance.size),
        );
    }
    let unborn = Rc::new(RefCell::new(BTreeSet::new()));
    vm.observe(Box::new(Births {
        heap: Heap::default(),
        names: allocators::standard()
            .into_iter()
            .map(|(name, role)| {
                let custom = false;
                (name, Followed { role, custom })
            })
            .collect(),
        functions: HashMap::new(),
        modules: ModuleMap::new(),
        written,
        firsts,
        unborn: unborn.clone(),
    }));
    Ok(unborn)
}

/// The read comes before anything was written.
fn without_value(reader: u32, reads_first: bool) -> Mixed {
    let order = if reads_first {
        "with the accesses in recorded order"
    } else {
        "with the accesses swapped"
    };
    Mixed {
        label: race::labels::UNINITIALISED_READ.to_string(),
        text: format!("{order}, thread {reader} reads memory that was allocated and never written"),
    }
}
