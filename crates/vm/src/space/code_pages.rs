//! Which pages code was translated from, and who else shows the same bytes.
//!
//! A file, a memfd or a shared anonymous mapping may be mapped several times: a
//! program writes code through one mapping and runs it through another (LuaJIT,
//! .NET and Firefox do). So code belongs to an object and an offset. While there
//! is code of a page, every mapping through which the guest may write its bytes
//! is kept read-only (`protection`), those that are made later too. A write to
//! any of them names the pages whose translation is stale, wherever they are.

use super::{Mapping, SharedObject, Space};
use crate::layout::{PAGE, page_down};
use crate::protection;
use std::ops::Range;

/// A part of an object: which, and which bytes of it.
struct Part {
    object: SharedObject,
    bytes: Range<u64>,
}

/// The addresses at which a mapping shows bytes of a part.
fn shown(start: u64, mapping: &Mapping, part: &Part) -> Option<Range<u64>> {
    let shows = mapping.shows.filter(|shows| shows.object == part.object)?;
    let end = shows.offset + (mapping.end - start);
    let from = part.bytes.start.max(shows.offset);
    let to = part.bytes.end.min(end);
    (from < to).then(|| start + (from - shows.offset)..start + (to - shows.offset))
}

impl Mapping {
    /// The guest may change its bytes by a store, for all who show them.
    fn is_shared_writer(&self) -> bool {
        self.shared && self.protection & libc::PROT_WRITE != 0
    }
}

impl Space {
    /// What `range`, which lies within one mapping, shows of an object that
    /// others may show as well.
    fn part(start: u64, mapping: &Mapping, range: &Range<u64>) -> Option<Part> {
        let shows = mapping.shows?;
        let at = |address: u64| shows.offset + (address - start);
        Some(Part {
            object: shows.object,
            bytes: at(range.start)..at(range.end),
        })
    }

    /// The parts of mappings within a range.
    fn within(&self, range: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>, &Mapping)> {
        let first = self
            .find(range.start)
            .map_or(range.start, |(one, _)| one.start);
        self.mappings
            .range(first..range.end.max(first))
            .map(move |(start, mapping)| {
                let part = range.start.max(*start)..range.end.min(mapping.end);
                (*start, part, mapping)
            })
            .filter(|(_, part, _)| !part.is_empty())
    }

    /// A mapping was made, or what may be done with it was changed.
    pub(super) fn note_mapping(&mut self, range: Range<u64>) {
        let mut news = Vec::new();
        let mut parts = Vec::new();
        for (start, part, mapping) in self.within(range) {
            let Some(shows) = mapping.shows else { continue };
            news.push((shows.object, mapping.is_shared_writer()));
            if mapping.is_shared_writer() {
                parts.extend(Self::part(start, mapping, &part).map(|shown| (part, shown)));
            }
        }
        for (object, writes) in news {
            self.shown.insert(object);
            if writes {
                self.written.insert(object);
            }
        }
        if self.translated.is_empty() {
            return;
        }
        for (range, part) in parts {
            for offset in self.code_of(&part) {
                protection::keep(range.start + (offset - part.bytes.start));
            }
        }
    }

    /// The offsets of pages of an object's part that code was translated from.
    fn code_of(&self, part: &Part) -> Vec<u64> {
        let mut offsets = Vec::new();
        for (start, mapping) in &self.mappings {
            let Some(range) = shown(*start, mapping, part) else {
                continue;
            };
            let first = mapping.shows.map_or(0, |shows| shows.offset);
            let pages = self.translated.range(range);
            offsets.extend(pages.map(|page| first + (page - start)));
        }
        offsets
    }

    /// Code is translated from `page`: from here on a write to what it shows is
    /// noticed.
    pub fn translated_from(&mut self, page: u64) {
        if !self.translated.insert(page) {
            return;
        }
        let Some((range, mapping)) = self.find(page) else {
            return;
        };
        if mapping.protection & libc::PROT_WRITE != 0 {
            protection::keep(page);
        }
        let Some(part) = Self::part(range.start, mapping, &(page..page + PAGE)) else {
            return;
        };
        if !self.written.contains(&part.object) {
            return;
        }
        for (start, mapping) in &self.mappings {
            if mapping.is_shared_writer()
                && let Some(at) = shown(*start, mapping, &part)
            {
                protection::keep(at.start);
            }
        }
    }

    /// The guest's memory was, or may have been, written in `range`: the pages
    /// whose translation is stale.
    pub fn stale_after_write(&mut self, range: Range<u64>) -> Vec<u64> {
        let mut stale = Vec::new();
        let mut parts = Vec::new();
        for (start, part, mapping) in self.within(range) {
            match Self::part(start, mapping, &part).filter(|_| mapping.shared) {
                Some(shown) => parts.push(shown),
                None => stale.extend(self.translated_in(part)),
            }
        }
        for page in &stale {
            self.translated.remove(page);
        }
        for part in parts {
            stale.extend(self.stale_part(&part));
        }
        stale
    }

    /// The same for bytes of an object that were changed without a mapping.
    pub fn stale_after_change(&mut self, object: SharedObject, bytes: Range<u64>) -> Vec<u64> {
        if !self.shown.contains(&object) {
            return Vec::new();
        }
        self.stale_part(&Part { object, bytes })
    }

    /// Pages of `range`, which may begin within one, that code was translated from.
    fn translated_in(&self, range: Range<u64>) -> impl Iterator<Item = u64> {
        self.translated
            .range(page_down(range.start)..range.end)
            .copied()
    }

    fn stale_part(&mut self, part: &Part) -> Vec<u64> {
        let pages: Vec<u64> = self
            .mappings
            .iter()
            .filter_map(|(start, mapping)| shown(*start, mapping, part))
            .flat_map(|range| self.translated_in(range))
            .collect();
        for page in &pages {
            self.translated.remove(page);
        }
        pages
    }

    /// Mappings that share an object: where, with which protection, from which
    /// offset on.
    pub fn shared_parts(&self, object: SharedObject) -> Vec<(Range<u64>, i32, u64)> {
        self.mappings()
            .filter(|(_, mapping)| mapping.shared)
            .filter_map(|(range, mapping)| {
                let shows = mapping.shows.filter(|shows| shows.object == object)?;
                Some((range, mapping.protection, shows.offset))
            })
            .collect()
    }

    /// The object is, or was, mapped.
    pub fn shows(&self, object: SharedObject) -> bool {
        self.shown.contains(&object)
    }
}
