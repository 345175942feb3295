//! The guest's address space: what is mapped where, and the host mappings
//! behind it.
//!
//! The vm picks every address the guest does not insist on, downwards from
//! `layout::MMAP_TOP`, so the same sequence of calls gives the same addresses
//! in every run. Guest code pages are mapped readable but never executable on
//! the host: only the code cache runs. Pages from which code has been
//! translated and which the guest may write are write-protected on the host
//! (`code_pages`); the first write faults and the vm drops the stale translation.

mod code_pages;

use crate::layout::{self, PAGE, page_down, page_up};
use crate::{host, memory, protection};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;

/// What lies behind a mapping.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Backing {
    Anonymous,
    File {
        path: Arc<PathBuf>,
        /// Offset in the file of the mapping's first byte.
        offset: u64,
    },
    Stack,
    Heap,
    /// The functions that the kernel gives to every program (`vdso`).
    Vdso,
}

/// Something that several mappings, of one process or of many, may show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SharedObject {
    /// A file, by device and inode.
    File([u64; 2]),
    /// A segment of System V shared memory, by its id.
    Segment(i32),
    /// Shared anonymous memory, by a number of this process's.
    Anonymous(u64),
}

/// What a mapping shows of an object, from its first byte on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shows {
    pub object: SharedObject,
    pub offset: u64,
}

/// What the guest has said about a mapping.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Advice {
    /// It grows to where it is used below its start (MAP_GROWSDOWN).
    pub grows_down: bool,
    /// A forked child does not have it (MADV_DONTFORK).
    pub not_forked: bool,
    /// A forked child finds zeros there (MADV_WIPEONFORK).
    pub wiped_on_fork: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mapping {
    pub end: u64,
    pub protection: i32,
    pub shared: bool,
    /// Other processes may write it (`kernel::shared_memory`).
    pub exchanged: bool,
    pub backing: Backing,
    /// The object behind it, if others may show it too.
    pub shows: Option<Shows>,
    pub advice: Advice,
}

impl Mapping {
    /// The same mapping as seen from `skipped` bytes further on.
    fn tail(&self, skipped: u64) -> Mapping {
        let mut tail = self.clone();
        if let Backing::File { offset, .. } = &mut tail.backing {
            *offset += skipped;
        }
        if let Some(shows) = &mut tail.shows {
            shows.offset += skipped;
        }
        tail
    }
}

#[derive(Default)]
pub struct Space {
    mappings: BTreeMap<u64, Mapping>,
    /// Start and current end of the `brk` area.
    pub brk_start: u64,
    pub brk: u64,
    /// Room below the main thread's stack that only a wish for exactly that
    /// address may fill, so that an overflow faults.
    pub stack_gap: Range<u64>,
    /// There has been anonymous memory, or a file, mapped so that other
    /// processes may write it.
    pub shares_memory: bool,
    pub shares_files: bool,
    /// Pages that code was translated from and that have not been written since.
    translated: BTreeSet<u64>,
    /// Objects that have been mapped, and those of them that could be written
    /// through a mapping.
    shown: BTreeSet<SharedObject>,
    written: BTreeSet<SharedObject>,
    /// Shared anonymous memory made so far.
    anonymous: u64,
    /// There has been a mapping that grows.
    grows: bool,
}

impl Hash for Space {
    /// What the guest can tell; which pages code was translated from it cannot.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Space {
            mappings,
            brk_start,
            brk,
            stack_gap,
            shares_memory,
            shares_files,
            translated: _,
            shown,
            written,
            anonymous,
            grows,
        } = self;
        (mappings, brk_start, brk, stack_gap, shares_memory).hash(state);
        (shares_files, shown, written, anonymous, grows).hash(state);
    }
}

pub type Errno = i64;

pub const ENOMEM: Errno = -(libc::ENOMEM as i64);
pub const EINVAL: Errno = -(libc::EINVAL as i64);
pub const EEXIST: Errno = -(libc::EEXIST as i64);
pub const EFAULT: Errno = -(libc::EFAULT as i64);

/// Where a new mapping goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    Anywhere,
    /// Preferred, if free.
    Hint(u64),
    /// Below this address (MAP_32BIT).
    Below(u64),
    /// Exactly there, replacing what is there.
    Fixed(u64),
    /// Exactly there, or not at all.
    FixedNoReplace(u64),
}

/// What a new mapping is made of.
pub struct Request {
    pub length: u64,
    pub protection: i32,
    pub shared: bool,
    pub backing: Backing,
    /// Host file to map and the offset in it; anonymous memory without.
    pub file: Option<(RawFd, u64)>,
    /// What is mapped, if others may map it too. Shared anonymous memory gets a
    /// number of its own.
    pub object: Option<SharedObject>,
    pub grows_down: bool,
}

impl Request {
    /// Private memory of zeros.
    pub fn anonymous(length: u64, protection: i32) -> Request {
        Request {
            length,
            protection,
            shared: false,
            backing: Backing::Anonymous,
            file: None,
            object: None,
            grows_down: false,
        }
    }
}

/// Guest protection as the host mapping gets it: readable where executable,
/// never executable.
pub(crate) fn host_protection(guest: i32) -> i32 {
    let mut host = guest & (libc::PROT_READ | libc::PROT_WRITE);
    if guest & (libc::PROT_EXEC | libc::PROT_WRITE) != 0 {
        host |= libc::PROT_READ;
    }
    host
}

impl Space {
    pub fn mappings(&self) -> impl Iterator<Item = (Range<u64>, &Mapping)> {
        self.mappings
            .iter()
            .map(|(start, mapping)| (*start..mapping.end, mapping))
    }

    pub fn find(&self, address: u64) -> Option<(Range<u64>, &Mapping)> {
        let (start, mapping) = self.mappings.range(..=address).next_back()?;
        (address < mapping.end).then_some((*start..mapping.end, mapping))
    }

    /// Bytes that can be executed at `pc`, at most `buffer.len()`.
    pub fn fetch(&self, pc: u64, buffer: &mut [u8; 15]) -> usize {
        let mut length = 0;
        while length < buffer.len() {
            let at = pc.wrapping_add(length as u64);
            let Some((range, mapping)) = self.find(at) else {
                break;
            };
            if mapping.protection & libc::PROT_EXEC == 0 {
                break;
            }
            let available = (range.end - at).min((buffer.len() - length) as u64) as usize;
            if crate::memory::read(at, &mut buffer[length..length + available]).is_err() {
                break;
            }
            length += available;
        }
        length
    }

    fn is_free(&self, range: &Range<u64>) -> bool {
        self.mappings
            .range(..range.end)
            .next_back()
            .is_none_or(|(_, mapping)| mapping.end <= range.start)
    }

    /// A guest mapping may lie here at all.
    fn allowed(range: &Range<u64>) -> bool {
        range.start < range.end
            && range.start >= layout::GUEST_BOTTOM
            && range.end <= layout::MMAP_TOP
            && !(range.start < layout::HOST_IMAGE.end && layout::HOST_IMAGE.start < range.end)
    }

    /// Highest free place of `length` bytes.
    fn free_place(&self, length: u64) -> Option<u64> {
        self.free_place_below(layout::MMAP_TOP, length)
    }

    fn free_place_below(&self, limit: u64, length: u64) -> Option<u64> {
        let brk_area = self.brk_start..self.brk_start.saturating_add(layout::BRK_ROOM);
        let mut top = limit;
        let fits = |start: u64, end: u64| {
            let range = start..end;
            let clear_of = |area: &Range<u64>| area.start >= range.end || area.end <= range.start;
            Self::allowed(&range) && clear_of(&brk_area) && clear_of(&self.stack_gap)
        };
        for (start, mapping) in self.mappings.iter().rev() {
            if *start >= top {
                continue;
            }
            if mapping.end <= top {
                // The hole between this mapping and `top`, with the brk area
                // cut out of it.
                for ceiling in [top, self.stack_gap.start, brk_area.start] {
                    if ceiling <= top
                        && ceiling >= mapping.end.saturating_add(length)
                        && fits(ceiling - length, ceiling)
                    {
                        return Some(ceiling - length);
                    }
                }
            }
            top = top.min(mapping.low_end(*start));
        }
        [
            top,
            brk_area.start.min(top),
            layout::HOST_IMAGE.start.min(top),
        ]
        .into_iter()
        .filter_map(|ceiling| Some((ceiling.checked_sub(length)?, ceiling)))
        .find(|(start, end)| fits(*start, *end))
        .map(|(start, _)| start)
    }

    /// Where a mapping of `length` bytes would go.
    pub fn reserve(&self, length: u64) -> Option<u64> {
        self.free_place(length)
    }

    /// Makes a mapping; returns its address. `length` is rounded up to pages.
    pub fn map(&mut self, placement: Placement, request: Request) -> Result<u64, Errno> {
        let length = page_up(request.length);
        if length == 0 || request.length > layout::GUEST_TOP {
            return Err(if request.length == 0 { EINVAL } else { ENOMEM });
        }
        let start = match placement {
            Placement::Fixed(address) | Placement::FixedNoReplace(address) => {
                if address % PAGE != 0 {
                    return Err(EINVAL);
                }
                let range = address..address.checked_add(length).ok_or(ENOMEM)?;
                if !Self::allowed(&range) {
                    return Err(ENOMEM);
                }
                if matches!(placement, Placement::FixedNoReplace(_)) && !self.is_free(&range) {
                    return Err(EEXIST);
                }
                address
            }
            Placement::Hint(hint) => {
                let hint = page_down(hint);
                let range = hint..hint.saturating_add(length);
                if Self::allowed(&range) && self.is_free(&range) {
                    hint
                } else {
                    self.free_place(length).ok_or(ENOMEM)?
                }
            }
            Placement::Below(top) => self.free_place_below(top, length).ok_or(ENOMEM)?,
            Placement::Anywhere => self.free_place(length).ok_or(ENOMEM)?,
        };
        let flags = libc::MAP_FIXED
            | libc::MAP_NORESERVE
            | if request.shared {
                libc::MAP_SHARED
            } else {
                libc::MAP_PRIVATE
            };
        let (flags, fd, offset) = match request.file {
            Some((fd, offset)) => (flags, fd, offset),
            None => (flags | libc::MAP_ANONYMOUS, -1, 0),
        };
        // SAFETY: the range lies in the guest's part of the address space
        // (`allowed`), where nothing of the vm's lives.
        let result = unsafe {
            host::syscall(
                libc::SYS_mmap,
                [
                    start,
                    length,
                    host_protection(request.protection) as u64,
                    flags as u64,
                    fd as u64,
                    offset,
                ],
            )
        };
        if result < 0 {
            return Err(result);
        }
        self.forget(start..start + length);
        let object = request.object.or_else(|| {
            (request.shared && request.file.is_none()).then(|| {
                self.anonymous += 1;
                SharedObject::Anonymous(self.anonymous)
            })
        });
        // The first stack is mapped to its limit.
        self.grows |= request.grows_down && request.backing != Backing::Stack;
        self.mappings.insert(
            start,
            Mapping {
                end: start + length,
                protection: request.protection,
                shared: request.shared,
                exchanged: false,
                backing: request.backing,
                shows: object.map(|object| Shows { object, offset }),
                advice: Advice {
                    grows_down: request.grows_down,
                    ..Advice::default()
                },
            },
        );
        self.note_mapping(start..start + length);
        Ok(start)
    }

    /// The guest sees the mapping at `start` as shared, whatever the host has.
    pub fn mark_shared(&mut self, start: u64) {
        if let Some(mapping) = self.mappings.get_mut(&start) {
            mapping.shared = true;
        }
    }

    /// Other processes may write the mapping at `start`.
    pub fn mark_exchanged(&mut self, start: u64) {
        if let Some(mapping) = self.mappings.get_mut(&start) {
            mapping.exchanged = true;
            match mapping.backing {
                Backing::File { .. } => self.shares_files = true,
                _ => self.shares_memory = true,
            }
        }
    }

    /// Writes to guest memory whatever its protection; what is not mapped is
    /// left out.
    pub fn force_write(&self, address: u64, bytes: &[u8]) {
        let page = page_down(address);
        if crate::memory::write(address, bytes).is_ok() {
            return;
        }
        let Some((_, mapping)) = self.find(address) else {
            return;
        };
        let length = page_up(address + bytes.len() as u64) - page;
        let both = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let kept = host_protection(mapping.protection);
        // SAFETY: pages of a guest mapping, whose protection is put back.
        unsafe {
            host::syscall(libc::SYS_mprotect, [page, length, both, 0, 0, 0]);
            // It fails only where nothing is mapped any more.
            let _ = crate::memory::write(address, bytes);
            host::syscall(libc::SYS_mprotect, [page, length, kept as u64, 0, 0, 0]);
        }
    }

    /// Splits mappings so that none crosses `at`.
    fn split(&mut self, at: u64) {
        let Some((range, mapping)) = self.find(at) else {
            return;
        };
        if range.start == at {
            return;
        }
        let tail = mapping.tail(at - range.start);
        if let Some(head) = self.mappings.get_mut(&range.start) {
            head.end = at;
        }
        self.mappings.insert(at, tail);
    }

    /// Removes `range` from the books.
    fn forget(&mut self, range: Range<u64>) {
        self.split(range.start);
        self.split(range.end);
        let inside: Vec<u64> = self
            .mappings
            .range(range.clone())
            .map(|(start, _)| *start)
            .collect();
        for start in inside {
            self.mappings.remove(&start);
        }
        self.forget_code(range);
    }

    /// The pages of `range` are others, or may be used otherwise.
    fn forget_code(&mut self, range: Range<u64>) {
        protection::forget(range.clone());
        let translated: Vec<u64> = self.translated.range(range).copied().collect();
        for page in translated {
            self.translated.remove(&page);
        }
    }

    fn checked(address: u64, length: u64) -> Result<Range<u64>, Errno> {
        if !address.is_multiple_of(PAGE) || length == 0 {
            return Err(EINVAL);
        }
        /// The end of user space, as the guest knows it.
        const END: u64 = (1 << 47) - PAGE;
        let end = address.checked_add(page_up(length)).ok_or(EINVAL)?;
        if end > END {
            return Err(EINVAL);
        }
        // There is nothing of the guest's above.
        Ok(address.min(layout::GUEST_TOP)..end.min(layout::GUEST_TOP))
    }

    pub fn unmap(&mut self, address: u64, length: u64) -> Result<Range<u64>, Errno> {
        let range = Self::checked(address, length)?;
        // Only what is the guest's: the host has mappings below GUEST_TOP.
        self.split(range.start);
        self.split(range.end);
        let inside: Vec<Range<u64>> = self
            .mappings
            .range(range.clone())
            .map(|(start, mapping)| *start..mapping.end)
            .collect();
        for part in inside {
            // SAFETY: `part` is a guest mapping made by `map`.
            unsafe {
                host::syscall(
                    libc::SYS_munmap,
                    [part.start, part.end - part.start, 0, 0, 0, 0],
                )
            };
        }
        self.forget(range.clone());
        Ok(range)
    }

    pub fn protect(
        &mut self,
        address: u64,
        length: u64,
        protection: i32,
    ) -> Result<(Range<u64>, Errno), Errno> {
        if length == 0 && address.is_multiple_of(PAGE) {
            return Ok((address..address, 0));
        }
        let mut range = Self::checked(address, length)?;
        if range.end - range.start < page_up(length) {
            return Err(ENOMEM);
        }
        let mut at = range.start;
        while at < range.end
            && let Some((part, _)) = self.find(at)
        {
            at = part.end;
        }
        let whole = at >= range.end;
        range.end = range.end.min(at);
        if range.is_empty() {
            return Err(ENOMEM);
        }
        // SAFETY: every page of the range is a guest mapping.
        let result = unsafe {
            host::syscall(
                libc::SYS_mprotect,
                [
                    range.start,
                    range.end - range.start,
                    host_protection(protection) as u64,
                    0,
                    0,
                    0,
                ],
            )
        };
        if result < 0 {
            return Err(result);
        }
        self.split(range.start);
        self.split(range.end);
        for (_, mapping) in self.mappings.range_mut(range.clone()) {
            mapping.protection = protection;
        }
        self.forget_code(range.clone());
        self.note_mapping(range.clone());
        self.merge(range.clone());
        Ok((range, if whole { 0 } else { ENOMEM }))
    }

    /// Joins neighbours that are alike, so that the books stay as small as
    /// the kernel's.
    fn merge(&mut self, around: Range<u64>) {
        let mut starts: Vec<u64> = self
            .mappings
            .range(..=around.end)
            .rev()
            .take_while(|(_, mapping)| mapping.end >= around.start)
            .map(|(start, _)| *start)
            .collect();
        starts.reverse();
        for pair in starts.windows(2).rev() {
            let (Some(first), Some(second)) =
                (self.mappings.get(&pair[0]), self.mappings.get(&pair[1]))
            else {
                continue;
            };
            if first.end == pair[1] && first.tail(pair[1] - pair[0]).alike(second) {
                let end = second.end;
                self.mappings.remove(&pair[1]);
                if let Some(first) = self.mappings.get_mut(&pair[0]) {
                    first.end = end;
                }
            }
        }
    }

    /// `mremap`. Returns the new address and the ranges whose contents moved
    /// away.
    pub fn remap(
        &mut self,
        old: u64,
        old_length: u64,
        new_length: u64,
        flags: i32,
        new_address: u64,
    ) -> Result<(u64, Option<Range<u64>>), Errno> {
        let may_move = flags & libc::MREMAP_MAYMOVE != 0;
        let fixed = flags & libc::MREMAP_FIXED != 0;
        let keep = flags & libc::MREMAP_DONTUNMAP != 0;
        let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        if flags & !known != 0
            || !old.is_multiple_of(PAGE)
            || new_length == 0
            || ((fixed || keep) && !may_move)
            || (keep && page_up(old_length) != page_up(new_length))
        {
            return Err(EINVAL);
        }
        // Neighbours that are alike are one mapping to the kernel.
        self.merge(old..old.saturating_add(page_up(old_length)));
        let (range, mapping) = self.find(old).ok_or(EFAULT)?;
        let (old_length, new_length) = (page_up(old_length), page_up(new_length));
        if old_length == 0 && !mapping.shared {
            return Err(EINVAL);
        }
        let mut moved = mapping.tail(old - range.start);
        if !fixed && !keep && new_length <= old_length {
            // What is given back may be several mappings.
            if new_length < old_length {
                self.unmap(old + new_length, old_length - new_length)?;
                return Ok((old, Some(old + new_length..old + old_length)));
            }
            return Ok((old, None));
        }
        if old_length > range.end - old {
            return Err(EFAULT);
        }
        if !fixed && !keep {
            let growth = old + old_length..old.saturating_add(new_length);
            if old_length != 0
                && range.end == old + old_length
                && Self::allowed(&growth)
                && self.is_free(&growth)
            {
                self.host_remap(old, old_length, new_length, old, 0)?;
                self.split(old);
                if let Some(mapping) = self.mappings.get_mut(&old) {
                    mapping.end = old + new_length;
                }
                self.note_mapping(old..old + new_length);
                self.merge(old..old + new_length);
                return Ok((old, None));
            }
            if !may_move {
                return Err(ENOMEM);
            }
        }
        let target = if fixed {
            let range = new_address..new_address.saturating_add(new_length);
            if !new_address.is_multiple_of(PAGE) || !Self::allowed(&range) {
                return Err(EINVAL);
            }
            let old_range = old..old + old_length.max(PAGE);
            if range.start < old_range.end && old_range.start < range.end {
                return Err(EINVAL);
            }
            self.unmap(new_address, new_length)?;
            new_address
        } else {
            self.free_place(new_length).ok_or(ENOMEM)?
        };
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | flags & libc::MREMAP_DONTUNMAP;
        self.host_remap(old, old_length, new_length, target, how)?;
        match keep {
            // The old place stays mapped: private memory is empty there.
            true => self.forget_code(old..old + old_length),
            false if old_length != 0 => self.forget(old..old + old_length),
            false => {}
        }
        moved.end = target + new_length;
        self.mappings.insert(target, moved);
        self.note_mapping(target..target + new_length);
        Ok((target, Some(old..old + old_length)))
    }

    fn host_remap(
        &self,
        old: u64,
        old_length: u64,
        length: u64,
        to: u64,
        flags: i32,
    ) -> Result<(), Errno> {
        const EFAULT: Errno = -(libc::EFAULT as i64);
        // To the host pages kept read-only are mappings of their own.
        protection::lift_range(old..old + old_length);
        match host_remap_one(old, old_length, length, to, flags) {
            // What is one mapping in the books, and was one while recording, is
            // several to the host: a replay opens a file for each mapping.
            Err(EFAULT) if old_length != 0 && flags & libc::MREMAP_DONTUNMAP == 0 => {
                let kept = old_length.min(length);
                if to != old {
                    for at in (0..kept - PAGE).step_by(PAGE as usize) {
                        host_remap_one(old + at, PAGE, PAGE, to + at, flags)?;
                    }
                }
                // The last one takes what is new with it.
                let last = kept - PAGE;
                host_remap_one(old + last, PAGE, PAGE + length - kept, to + last, flags)?;
                if kept < old_length {
                    let rest = [old + kept, old_length - kept, 0, 0, 0, 0];
                    // SAFETY: the end of a guest mapping that moves away.
                    unsafe { host::syscall(libc::SYS_munmap, rest) };
                }
                Ok(())
            }
            other => other,
        }
    }

    /// A use of `address`, where nothing is mapped: a mapping above that grows
    /// down does so, to `most` bytes. True if it did.
    pub fn grow_down(&mut self, address: u64, most: u64) -> bool {
        if !self.grows {
            return false;
        }
        let page = page_down(address);
        if self.find(page).is_some() {
            return false;
        }
        let Some((start, mapping)) = self.mappings.range(page..).next() else {
            return false;
        };
        let (start, end) = (*start, mapping.end);
        let crowded = self
            .mappings
            .range(..page)
            .next_back()
            .is_some_and(|(_, below)| {
                !below.advice.grows_down
                    && below.protection != libc::PROT_NONE
                    && page - below.end < layout::STACK_GAP
            });
        let advice = mapping.advice;
        if !advice.grows_down || crowded || end - page > most || !Self::allowed(&(page..start)) {
            return false;
        }
        let request = Request {
            backing: mapping.backing.clone(),
            grows_down: true,
            ..Request::anonymous(start - page, mapping.protection)
        };
        if self.map(Placement::Fixed(page), request).is_err() {
            return false;
        }
        if let Some(mapping) = self.mappings.get_mut(&page) {
            mapping.advice = advice;
        }
        self.merge(page..end);
        true
    }

    /// Where the mapping that contains `address`, or the next one, begins, if it
    /// is one that grows down: where PROT_GROWSDOWN begins.
    pub fn start_of_growing(&self, address: u64, end: u64) -> Result<u64, Errno> {
        let (start, mapping) = match self.find(address) {
            Some((range, mapping)) => (range.start, mapping),
            None => {
                let next = self.mappings.range(address..end).next().ok_or(ENOMEM)?;
                (*next.0, next.1)
            }
        };
        match mapping.advice.grows_down {
            true => Ok(start),
            false => Err(EINVAL),
        }
    }

    /// Changes what has been said about the mappings in a range of pages.
    pub fn advise(&mut self, range: Range<u64>, change: impl Fn(&mut Advice)) {
        self.split(range.start);
        self.split(range.end);
        for (_, mapping) in self.mappings.range_mut(range.clone()) {
            change(&mut mapping.advice);
        }
        self.merge(range);
    }

    /// Mappings that a forked child does not have, and those it finds empty.
    pub fn not_inherited(&self) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
        let chosen = |choose: fn(&Advice) -> bool| {
            self.mappings()
                .filter(|(_, mapping)| choose(&mapping.advice))
                .map(|(range, _)| range)
                .collect()
        };
        (
            chosen(|advice| advice.not_forked),
            chosen(|advice| advice.wiped_on_fork && !advice.not_forked),
        )
    }

    /// `brk`: returns the new end, or the old one if it cannot move.
    pub fn set_brk(&mut self, wanted: u64) -> u64 {
        if wanted < self.brk_start || wanted > self.brk_start + layout::BRK_ROOM {
            return self.brk;
        }
        let (old, new) = (page_up(self.brk), page_up(wanted));
        if new > old {
            // A page stays free above.
            let next = self.mappings.range(old..).next();
            if next.is_some_and(|(start, mapping)| new + PAGE > mapping.low_end(*start)) {
                return self.brk;
            }
            let request = Request {
                backing: Backing::Heap,
                ..Request::anonymous(new - old, libc::PROT_READ | libc::PROT_WRITE)
            };
            if self.map(Placement::FixedNoReplace(old), request).is_err() {
                return self.brk;
            }
            self.merge(self.brk_start..new);
        } else if new < old && self.unmap(new, old - new).is_err() {
            return self.brk;
        }
        self.brk = wanted;
        wanted
    }

    /// Bytes of address space in use.
    pub fn size(&self) -> u64 {
        self.mappings()
            .map(|(range, _)| range.end - range.start)
            .sum()
    }

    /// Copies `bytes` into mapped memory whatever its protection, the way a
    /// debugger does. False if that cannot be.
    pub fn write_anyway(&self, address: u64, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        let mut at = address;
        while !rest.is_empty() {
            let page = page_down(at);
            let (part, behind) = rest.split_at(rest.len().min((page + PAGE - at) as usize));
            let Some((_, mapping)) = self.find(page) else {
                return false;
            };
            protection::lift(page);
            protection::set(page, libc::PROT_READ | libc::PROT_WRITE);
            let written = memory::write(at, part).is_ok();
            protection::set(page, host_protection(mapping.protection));
            if !written {
                return false;
            }
            at = page + PAGE;
            rest = behind;
        }
        true
    }

    /// Unmaps everything (the guest executes another program).
    pub fn clear(&mut self) {
        let all: Vec<Range<u64>> = self.mappings().map(|(range, _)| range).collect();
        for range in all {
            // Ranges come from the books, so the call cannot fail.
            let _ = self.unmap(range.start, range.end - range.start);
        }
        *self = Space::default();
    }
}

/// `mremap` of what is one mapping to the host.
fn host_remap_one(
    old: u64,
    old_length: u64,
    length: u64,
    to: u64,
    flags: i32,
) -> Result<(), Errno> {
    // SAFETY: source and target are guest ranges, checked by the caller.
    let result = unsafe {
        host::syscall(
            libc::SYS_mremap,
            [old, old_length, length, flags as u64, to, 0],
        )
    };
    if result < 0 { Err(result) } else { Ok(()) }
}

impl Mapping {
    /// Nothing is put between here and the mapping's start: room to grow.
    fn low_end(&self, start: u64) -> u64 {
        match self.advice.grows_down {
            true => start.saturating_sub(layout::STACK_GAP),
            false => start,
        }
    }

    fn alike(&self, other: &Mapping) -> bool {
        self.protection == other.protection
            && self.shared == other.shared
            && self.exchanged == other.exchanged
            && self.backing == other.backing
            && self.shows == other.shows
            && self.advice == other.advice
    }
}
