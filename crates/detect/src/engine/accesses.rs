//! What an access means: plain, atomic by its instruction or by its source,
//! synchronisation by hand, and the edges that follow.

use super::calls::cut;
use super::{Access, Checker, Engine, HappensBefore, Meaning, SEQUENCERS, Thread};
use crate::code::{Atomic, Origin, Reader};
use crate::source::Shape;
use crate::sync::{Object, Publish};
use std::collections::BTreeMap;
use vm::observe::AccessEvent;

/// Of the processors that there are.
const LONGEST_VECTOR: usize = 64;

impl<C: Checker> Engine<C> {
    /// Everything the thread did so far happens before what follows an
    /// acquire of the object.
    pub(super) fn release(thread: &mut Thread, object: &mut Object) {
        object.clock.join(&thread.clock);
        thread.advance();
    }

    /// The thread passes a sequencer.
    pub(super) fn sequencer(&mut self, thread: &mut Thread) {
        if self.mode == HappensBefore::Sequencer {
            let all = self.objects.entry(SEQUENCERS);
            thread.clock.join(&all.clock);
            all.clock.join(&thread.clock);
            thread.advance();
        }
    }

    /// An access the fast check did not know.
    pub(super) fn slow(&mut self, event: &AccessEvent, thread: &mut Thread) {
        let origin = self.code.origin(event.pc);
        match origin {
            Origin::Linker => return,
            Origin::CLibrary if self.is_library_memory(event.address, thread) => return,
            Origin::GoRuntime => return,
            Origin::GoSync if !event.locked && self.words.get(event.address & !3).is_none() => {
                return;
            }
            Origin::GoSync if !event.locked => return self.synchronise(event, thread),
            Origin::Threading if thread.hands_out_tasks() => return,
            Origin::Threading => return self.synchronise(event, thread),
            _ => {}
        }
        if let Some(only_library) = self.guards.get(&(event.address & !3))
            && (!only_library || origin == Origin::CLibrary)
        {
            return self.synchronise(event, thread);
        }
        let order = self.next_order();
        let size = self.bytes_meant(event, origin);
        let mut access = Access {
            moment: event.moment,
            order,
            pc: event.pc,
            address: event.address,
            size,
            read: event.read,
            write: event.write,
            meaning: Meaning::Plain,
        };
        let mut released = event.locked;
        if event.locked {
            self.sequencer(thread);
            self.locked(event, thread, &mut access);
        } else if event.size <= 16 {
            released = self.plain(event, thread, &mut access);
        }
        for (address, size) in self.not_meant(&access, thread) {
            let part = Access {
                address,
                size,
                ..access
            };
            self.checker.access(&part, thread, &self.heap);
        }
        if released {
            thread.advance();
        }
    }

    /// The parts of an access that the program does not say may race (rule 0),
    /// as address and size.
    fn not_meant(&self, access: &Access, thread: &Thread) -> Vec<(u64, u64)> {
        let [reads, writes] = thread.ignores;
        if (reads > 0 && !access.write) || (writes > 0 && access.write) {
            return Vec::new();
        }
        let end = access.address + access.size;
        let mut rest = BTreeMap::from([(access.address, access.size)]);
        let before = self.meant.range(..end).rev();
        for (start, size) in before.take_while(|(start, size)| *start + *size > access.address) {
            cut(&mut rest, &(*start..start + size));
        }
        rest.into_iter().collect()
    }

    /// String functions of the C library read whole vectors, also past the end
    /// of the string and of the block that it is in: that is none of the
    /// program's doing.
    fn bytes_meant(&mut self, event: &AccessEvent, origin: Origin) -> u64 {
        let mut size = u64::from(event.size);
        if origin != Origin::CLibrary || event.write || size < 16 {
            return size;
        }
        if let Some(block) = self.heap.find(event.address) {
            size = size.min(block.start + block.size - event.address);
        }
        let mut bytes = [0; LONGEST_VECTOR];
        let Some(bytes) = bytes.get_mut(..size as usize) else {
            return size;
        };
        if self.code.reads_string(event.pc) && vm::memory::read(event.address, bytes).is_ok() {
            let end = bytes.iter().position(|byte| *byte == 0);
            return end.map_or(size, |end| end as u64 + 1);
        }
        size
    }

    /// Memory that the C library uses for itself.
    pub(super) fn is_library_memory(&mut self, address: u64, thread: &Thread) -> bool {
        if let Some(block) = self.heap.find(address) {
            return block.by_library;
        }
        thread.local.contains(&address)
            || self.break_area.contains(&address)
            || self
                .library_maps
                .range(..=address)
                .next_back()
                .is_some_and(|(start, size)| address < start + size)
            || self.code.is_library_data(address)
    }

    /// An access that is nothing but synchronisation.
    pub(super) fn synchronise(&mut self, event: &AccessEvent, thread: &mut Thread) {
        self.checker.synchronised(event.address, event.size);
        let mut released = false;
        for word in words_of(event.address, event.size) {
            if event.read
                && let Some(object) = self.words.get(word)
            {
                thread.acquire(&object.clock);
            }
            if event.write {
                let object = self.words.entry(word);
                object.clock.join(&thread.clock);
                released = true;
            }
        }
        if released {
            thread.advance();
        }
    }

    /// Rule 3: acquire and release, unless debug info says relaxed.
    pub(super) fn locked(&mut self, event: &AccessEvent, thread: &mut Thread, access: &mut Access) {
        let (mut acquires, mut releases) = (true, event.write);
        access.meaning = Meaning::Atomic {
            order_unknown: false,
        };
        let mut how = Publish::Continues;
        if let Some(atomic) = self.atomic_by_source(event, thread) {
            acquires = atomic.acquires;
            releases &= atomic.releases;
            if atomic.stores {
                how = Publish::Replaces;
            }
        }
        let reader = match self.code.origin(event.pc) {
            Origin::GoSync => self.code.reader(event.pc),
            _ => Reader::None,
        };
        // What it learns depends on whether it succeeds, which its result says.
        let exchanging = thread.is_exchanging();
        for (word, bytes) in words_with_bytes(event.address, event.size) {
            let object = self.words.entry(word);
            if !object.locked_by.contains(&thread.number) {
                object.locked_by.push(thread.number);
            }
            if reader != Reader::None {
                match reader {
                    Reader::Enters => thread.acquire(&object.clock),
                    _ => object.readers.join(&thread.clock),
                }
                continue;
            }
            if exchanging {
                thread.learnt.join(&object.clock);
            } else if how == Publish::Continues {
                thread.read(&object.clock, acquires);
                thread.read(&object.readers, acquires);
            }
            if event.write {
                let clock = if releases {
                    &thread.clock
                } else {
                    &thread.fenced
                };
                object.publish(bytes, clock, how);
            }
        }
    }

    /// A plain instruction: rules 3 and 4 decide whether it is more.
    /// Returns whether it released.
    pub(super) fn plain(
        &mut self,
        event: &AccessEvent,
        thread: &mut Thread,
        access: &mut Access,
    ) -> bool {
        let word = event.address & !3;
        let object = self.words.get(word);
        if object.is_none() && !self.checker.is_exact() {
            return false;
        }
        let locked = object.is_some_and(|object| !object.locked_by.is_empty());
        let locked_by_me = object.is_some_and(|object| object.locked_by.contains(&thread.number));
        let typed = object.is_some_and(|object| object.typed);
        let atomic = self.atomic_by_source(event, thread);
        if self.checker.is_exact() && atomic.is_some_and(|atomic| atomic.typed) {
            for word in words_of(event.address, event.size) {
                self.words.entry(word).typed = true;
            }
        }
        let (acquires, releases, order_unknown) = match atomic {
            Some(atomic) => (atomic.acquires, atomic.releases, atomic.order_unknown),
            None if self.is_atomic_variable(event.address) => (true, true, true),
            // The optimiser has lost the operation: two branches that both begin
            // with it share one instruction, which is in neither.
            None if typed
                && event.read != event.write
                && event.address.is_multiple_of(u64::from(event.size.max(1))) =>
            {
                (true, true, true)
            }
            // Half of a change by compare-and-swap.
            None if event.read && !event.write && self.code.begins_exchange(event.pc) => {
                (true, false, false)
            }
            // A spin unlock.
            None if locked_by_me && event.write && !event.read => {
                self.checker.home_made_lock(word);
                (false, true, false)
            }
            // A spin, or a check.
            None if locked && event.read && !event.write && self.code.feeds_branch(event.pc) => {
                (true, false, false)
            }
            // Where nothing tells, an access to a word that others lock, be it
            // later.
            None if (locked || self.checker.is_used_atomically(event.address))
                && event.read != event.write
                && event.size <= 8
                && event.address.is_multiple_of(u64::from(event.size.max(1)))
                && self.code.is_bare(event.pc) =>
            {
                (true, true, true)
            }
            None if event.size <= 8
                && event.address.is_multiple_of(u64::from(event.size.max(1)))
                && self.code.is_bare(event.pc) =>
            {
                return self.bare(event, thread, access);
            }
            None => return self.ad_hoc(event, thread),
        };
        access.meaning = Meaning::Atomic { order_unknown };
        for (word, bytes) in words_with_bytes(event.address, event.size) {
            if event.read
                && let Some(object) = self.words.get(word)
            {
                thread.read(&object.clock, acquires);
            }
            if event.write {
                let clock = if releases {
                    &thread.clock
                } else {
                    &thread.fenced
                };
                let object = self.words.entry(word);
                object.publish(bytes, clock, Publish::Replaces);
            }
        }
        event.write && releases
    }

    /// Rule 5: a spin on a plain variable orders in fact what the language
    /// does not. Kept beside the real clocks, for saying so.
    pub(super) fn ad_hoc(&mut self, event: &AccessEvent, thread: &mut Thread) -> bool {
        if !self.checker.is_exact() || event.size > 8 {
            return false;
        }
        let word = event.address & !3;
        if event.write && !event.read {
            let clock = self.stores.entry(word).or_default();
            clock.join(&thread.clock);
            clock.join(&thread.ad_hoc);
            return true;
        }
        if event.read
            && !event.write
            && let Some(clock) = self.stores.get(&word)
            && self.code.spins(event.pc)
        {
            thread.ad_hoc.join(clock);
        }
        false
    }

    /// A plain instruction of a program without debug info. An aligned store
    /// may be a release and a load that decides a branch an acquire: to call
    /// them a race would be wrong for every lock-free program, so they order
    /// (and what only they order is not reported). Stores against stores, and
    /// loads whose value is merely used, are told as ever.
    pub(super) fn bare(
        &mut self,
        event: &AccessEvent,
        thread: &mut Thread,
        access: &mut Access,
    ) -> bool {
        if event.write && !event.read {
            for word in words_of(event.address, event.size) {
                self.words.entry(word).clock.join(&thread.clock);
            }
            return true;
        }
        if event.read && !event.write && self.code.feeds_branch(event.pc) {
            access.meaning = Meaning::Check;
            for word in words_of(event.address, event.size) {
                if let Some(object) = self.words.get(word) {
                    thread.acquire(&object.clock);
                }
            }
        }
        false
    }

    /// Rule 4, from debug info, with the order that a function out of line was
    /// called with, or else the source text.
    pub(super) fn atomic_by_source(
        &mut self,
        event: &AccessEvent,
        thread: &Thread,
    ) -> Option<Atomic> {
        let Some(atomic) = self.code.atomic(event.pc) else {
            let shape = Shape::new(event.read, event.write, event.locked);
            let word = self.checker.is_used_atomically(event.address);
            return self
                .code
                .atomic_in_source(event.pc, shape, event.address, word);
        };
        if atomic.order_unknown
            && !thread.orders.is_empty()
            && let Some(function) = self.code.operation_around(event.pc)
            && let Some(order) = thread.orders.get(&function)
        {
            return self.code.atomic_of_order(event.pc, *order);
        }
        Some(atomic)
    }

    pub(super) fn is_atomic_variable(&mut self, address: u64) -> bool {
        self.checker.is_exact() && self.code.is_atomic_variable(address)
    }
}

/// The four-byte words that an access touches.
pub(super) fn words_of(address: u64, size: u32) -> impl Iterator<Item = u64> {
    let first = address & !3;
    (first..address.saturating_add(u64::from(size))).step_by(4)
}

/// The same with the bytes of each word that it touches, one bit each.
fn words_with_bytes(address: u64, size: u32) -> impl Iterator<Item = (u64, u8)> {
    let end = address.saturating_add(u64::from(size));
    words_of(address, size).map(move |word| {
        let bytes = (0..4).filter(|byte| (address..end).contains(&(word + byte)));
        (word, bytes.fold(0, |mask, byte| mask | 1 << byte))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unaligned_word_touches_its_neighbour() {
        assert_eq!(words_of(0x1002, 4).collect::<Vec<_>>(), [0x1000, 0x1004]);
        assert_eq!(words_of(0x1000, 1).collect::<Vec<_>>(), [0x1000]);
    }
}
