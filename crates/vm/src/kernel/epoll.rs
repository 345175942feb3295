//! epoll over descriptors inside and outside.
//!
//! Members inside the vm are looked at directly; edge-triggered ones are told
//! apart by the counters of arrivals that every object keeps. Members outside
//! are put into a host epoll set that belongs to the instance, so the host
//! itself decides about edges; what it reports is written down. Both kinds
//! mix freely in one instance.

use super::fd::{Description, DescriptionId, Object, ObjectId};
use super::poll::Found;
use super::{Call, Halt, Outcome};
use crate::machine::Vm;
use crate::memory;
use crate::thread::HostInterest;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const IN_EVENTS: u32 =
    (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLPRI | libc::EPOLLRDHUP) as u32;
const OUT_EVENTS: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
const MODES: u32 =
    (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP) as u32;

struct Member {
    events: u32,
    data: u64,
    /// Names it in the host set.
    serial: u64,
    outside: bool,
    /// A second host number for a description that is in the set twice.
    extra: Option<OwnedFd>,
    /// Arrivals already reported, for edges.
    seen: Option<[u64; 2]>,
    /// A one-shot member that has fired.
    spent: bool,
}

pub struct Epoll {
    pub id: ObjectId,
    members: BTreeMap<(i32, DescriptionId), Member>,
    /// Members outside, by their serial number.
    serials: BTreeMap<u64, (i32, DescriptionId)>,
    /// None while replaying.
    host: Option<OwnedFd>,
    outside: usize,
    next_serial: u64,
    /// The last member reported: the search goes on behind it, so that nobody
    /// starves.
    last: (i32, DescriptionId),
}

impl Hash for Member {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Member {
            events,
            data,
            serial,
            outside,
            extra,
            seen,
            spent,
        } = self;
        (events, data, serial, outside, extra.is_some(), seen, spent).hash(state);
    }
}

impl Hash for Epoll {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Epoll {
            id,
            members,
            serials,
            host,
            outside,
            next_serial,
            last,
        } = self;
        (id, members, serials, host.is_some(), outside).hash(state);
        (next_serial, last).hash(state);
    }
}

impl Epoll {
    fn host_number(&self) -> i32 {
        self.host.as_ref().map_or(-1, |fd| fd.as_raw_fd())
    }

    pub fn host_interest(&self) -> Option<HostInterest> {
        (self.outside > 0).then(|| HostInterest {
            fd: self.host_number(),
            events: libc::POLLIN,
        })
    }

    /// Members outside the vm that can still fire.
    pub fn outer_members(&self) -> Vec<(DescriptionId, i16)> {
        self.members
            .iter()
            .filter(|(_, member)| member.outside && !member.spent)
            .map(|((_, id), member)| (*id, member.events as i16))
            .collect()
    }

    /// Members inside the vm that can still fire.
    pub fn inner_members(&self) -> Vec<(DescriptionId, i16)> {
        self.members
            .iter()
            .filter(|(_, member)| !member.outside && !member.spent)
            .map(|((_, id), member)| (*id, member.events as i16))
            .collect()
    }
}

fn control(epoll: i32, operation: i32, fd: i32, events: u32, serial: u64) -> i64 {
    let mut event = libc::epoll_event {
        events,
        u64: serial,
    };
    // SAFETY: the event lives across the call.
    let result = unsafe { libc::epoll_ctl(epoll, operation, fd, &mut event) };
    if result < 0 {
        -i64::from(
            std::io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EIO),
        )
    } else {
        0
    }
}

impl Vm {
    pub(super) fn sys_epoll_create(&mut self, flags: i32) -> Outcome {
        if flags & !libc::EPOLL_CLOEXEC != 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let mut host = None;
        if self.io.is_live() {
            // SAFETY: no preconditions; a new descriptor owned by nobody else.
            let number = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
            if number >= 0 {
                // SAFETY: as above.
                host = Some(unsafe { OwnedFd::from_raw_fd(number) });
            }
        }
        let epoll = Epoll {
            id: self.kernel.fds.new_object(),
            members: BTreeMap::new(),
            serials: BTreeMap::new(),
            host,
            outside: 0,
            next_serial: 1,
            last: (-1, 0),
        };
        let cloexec = flags & libc::EPOLL_CLOEXEC != 0;
        let fd = self
            .kernel
            .fds
            .open(0, Object::Epoll(epoll), libc::O_RDWR, cloexec)?;
        Ok(i64::from(fd))
    }

    fn epoll(&mut self, id: DescriptionId) -> Result<&mut Epoll, Halt> {
        match &mut self.kernel.fds.by_id(id)?.object {
            Object::Epoll(epoll) => Ok(epoll),
            _ => Err(Halt::Errno(libc::EINVAL)),
        }
    }

    pub(super) fn sys_epoll_ctl(&mut self, call: &Call) -> Outcome {
        let [epfd, operation, fd, event, ..] = call.arguments;
        let (fd, operation) = (fd as i32, operation as i32);
        let set = self.kernel.fds.id(epfd as i32)?;
        let target = self.kernel.fds.id(fd)?;
        self.epoll(set)?;
        if set == target {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let (events, data) = if operation == libc::EPOLL_CTL_DEL {
            (0, 0)
        } else {
            let event = memory::get::<libc::epoll_event>(event)?;
            (event.events, event.u64)
        };
        let key = (fd, target);
        match operation {
            libc::EPOLL_CTL_ADD => self.epoll_add(set, key, events, data),
            libc::EPOLL_CTL_MOD => self.epoll_modify(set, key, events, data),
            libc::EPOLL_CTL_DEL => self.epoll_remove(set, key),
            _ => Err(Halt::Errno(libc::EINVAL)),
        }
    }

    fn epoll_add(
        &mut self,
        set: DescriptionId,
        key: (i32, DescriptionId),
        events: u32,
        data: u64,
    ) -> Outcome {
        let target = self.kernel.fds.by_id(key.1)?;
        let host = match &target.object {
            Object::Host(file) => Some(file.number()),
            // As regular files natively.
            Object::Bytes { .. } | Object::Listing(_) => return Err(Halt::Errno(libc::EPERM)),
            _ => None,
        };
        let epoll = self.epoll(set)?;
        if epoll.members.contains_key(&key) {
            return Err(Halt::Errno(libc::EEXIST));
        }
        let serial = epoll.next_serial;
        let twice = epoll.members.keys().any(|(_, id)| *id == key.1);
        let epoll_number = epoll.host_number();
        let mut extra = None;
        if let Some(number) = host {
            let result = self.io.external(libc::SYS_epoll_ctl as u32, || {
                let mut number = number;
                if twice {
                    // SAFETY: duplicating an open descriptor.
                    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 64) };
                    if copy >= 0 {
                        // SAFETY: just made, owned by nobody else.
                        extra = Some(unsafe { OwnedFd::from_raw_fd(copy) });
                        number = copy;
                    }
                }
                let result = control(epoll_number, libc::EPOLL_CTL_ADD, number, events, serial);
                (result, Vec::new())
            })?;
            if result < 0 {
                return Ok(result);
            }
        }
        let epoll = self.epoll(set)?;
        epoll.next_serial += 1;
        epoll.serials.insert(serial, key);
        epoll.outside += usize::from(host.is_some());
        epoll.members.insert(
            key,
            Member {
                events,
                data,
                serial,
                outside: host.is_some(),
                extra,
                seen: None,
                spent: false,
            },
        );
        let id = epoll.id;
        self.kernel.fds.by_id(key.1)?.watched = true;
        self.wake_objects(id);
        Ok(0)
    }

    /// Set, and number in it, of a member outside.
    fn host_member(
        &mut self,
        set: DescriptionId,
        key: (i32, DescriptionId),
    ) -> Result<Option<(i32, i32, u64)>, Halt> {
        let number = match &self.kernel.fds.by_id(key.1)?.object {
            Object::Host(file) => file.number(),
            _ => -1,
        };
        let epoll = self.epoll(set)?;
        let member = epoll.members.get(&key).ok_or(Halt::Errno(libc::ENOENT))?;
        let number = member.extra.as_ref().map_or(number, |fd| fd.as_raw_fd());
        Ok(member
            .outside
            .then(|| (epoll.host_number(), number, member.serial)))
    }

    fn epoll_modify(
        &mut self,
        set: DescriptionId,
        key: (i32, DescriptionId),
        events: u32,
        data: u64,
    ) -> Outcome {
        if let Some((epoll, number, serial)) = self.host_member(set, key)? {
            let result = self.io.external(libc::SYS_epoll_ctl as u32, || {
                let result = control(epoll, libc::EPOLL_CTL_MOD, number, events, serial);
                (result, Vec::new())
            })?;
            if result < 0 {
                return Ok(result);
            }
        }
        let epoll = self.epoll(set)?;
        if let Some(member) = epoll.members.get_mut(&key) {
            (member.events, member.data) = (events, data);
            member.seen = None;
            member.spent = false;
        }
        let id = epoll.id;
        self.wake_objects(id);
        Ok(0)
    }

    fn epoll_remove(&mut self, set: DescriptionId, key: (i32, DescriptionId)) -> Outcome {
        if let Some((epoll, number, _)) = self.host_member(set, key)?
            && self.io.is_live()
        {
            control(epoll, libc::EPOLL_CTL_DEL, number, 0, 0);
        }
        let epoll = self.epoll(set)?;
        if let Some(member) = epoll.members.remove(&key) {
            epoll.serials.remove(&member.serial);
            epoll.outside -= usize::from(member.outside);
        }
        Ok(0)
    }

    /// A description in some set is gone.
    pub(super) fn forget_watched(&mut self, gone: DescriptionId, description: &Description) {
        let number = match &description.object {
            Object::Host(file) => file.number(),
            _ => -1,
        };
        let live = self.io.is_live();
        for (_, other) in self.kernel.fds.all() {
            let Object::Epoll(epoll) = &mut other.object else {
                continue;
            };
            let host = epoll.host_number();
            let mut removed = 0;
            epoll.members.retain(|(_, id), member| {
                if *id != gone {
                    return true;
                }
                epoll.serials.remove(&member.serial);
                if member.outside {
                    removed += 1;
                    if live {
                        let number = member.extra.as_ref().map_or(number, |fd| fd.as_raw_fd());
                        control(host, libc::EPOLL_CTL_DEL, number, 0, 0);
                    }
                }
                false
            });
            epoll.outside -= removed;
        }
    }

    /// A forked process has sets of its own on the host: what it closes must
    /// not leave its parent's.
    pub(super) fn own_host_sets(&mut self) {
        let sets: Vec<DescriptionId> = self
            .kernel
            .fds
            .all()
            .filter(|(_, description)| matches!(description.object, Object::Epoll(_)))
            .map(|(id, _)| id)
            .collect();
        for set in sets {
            // SAFETY: no preconditions; a new descriptor owned by nobody else.
            let own = unsafe {
                let number = libc::epoll_create1(libc::EPOLL_CLOEXEC);
                if number < 0 {
                    continue;
                }
                OwnedFd::from_raw_fd(number)
            };
            let Ok(epoll) = self.epoll(set) else {
                continue;
            };
            let members: Vec<_> = epoll
                .members
                .iter()
                .filter(|(_, member)| member.outside)
                .map(|(key, member)| {
                    let events = if member.spent {
                        member.events & MODES
                    } else {
                        member.events
                    };
                    let extra = member.extra.as_ref().map(|fd| fd.as_raw_fd());
                    (key.1, extra, events, member.serial)
                })
                .collect();
            for (id, extra, events, serial) in members {
                let number = match self.kernel.fds.peek(id).map(|other| &other.object) {
                    Some(Object::Host(file)) => file.number(),
                    _ => continue,
                };
                let number = extra.unwrap_or(number);
                control(own.as_raw_fd(), libc::EPOLL_CTL_ADD, number, events, serial);
            }
            if let Ok(epoll) = self.epoll(set) {
                epoll.host = Some(own);
            }
        }
    }

    /// Members that were inside the vm and are now host descriptors move to
    /// the host's set.
    pub(super) fn externalise_watched(&mut self) -> Result<(), Halt> {
        let sets: Vec<DescriptionId> = self
            .kernel
            .fds
            .all()
            .filter(|(_, description)| matches!(description.object, Object::Epoll(_)))
            .map(|(id, _)| id)
            .collect();
        let live = self.io.is_live();
        for set in sets {
            let keys: Vec<_> = self.epoll(set)?.members.keys().copied().collect();
            for key in keys {
                let number = match self.kernel.fds.peek(key.1).map(|other| &other.object) {
                    Some(Object::Host(file)) => file.number(),
                    _ => continue,
                };
                let epoll = self.epoll(set)?;
                let host = epoll.host_number();
                let Some(member) = epoll.members.get_mut(&key) else {
                    continue;
                };
                if member.outside {
                    continue;
                }
                member.outside = true;
                let events = if member.spent {
                    member.events & MODES
                } else {
                    member.events
                };
                let serial = member.serial;
                epoll.outside += 1;
                if live {
                    control(host, libc::EPOLL_CTL_ADD, number, events, serial);
                }
            }
        }
        Ok(())
    }

    /// Arrivals at something inside the vm, for edges.
    fn arrivals(&self, id: DescriptionId) -> [u64; 2] {
        let now = self.now();
        match self
            .kernel
            .fds
            .peek(id)
            .map(|description| &description.object)
        {
            Some(Object::Pipe(end)) => end.pipe.borrow().events,
            Some(Object::Pair(end)) => end.link.borrow().events[end.side],
            Some(Object::Event(counter)) => counter.events,
            // Signals do not count their arrivals: as if one had come.
            Some(Object::Signals(_)) => [self.instructions(), 0],
            // Every expiry is an edge.
            Some(Object::Timer(timer)) => {
                let [set, read] = timer.events;
                [set + timer.expired(now) + timer.next.unwrap_or(0), read]
            }
            _ => [0; 2],
        }
    }

    /// Events with which a member inside the vm would be reported now.
    fn member_ready(
        &mut self,
        key: (i32, DescriptionId),
        events: u32,
        seen: Option<[u64; 2]>,
    ) -> u32 {
        let Some(state) = self.readiness(key.1) else {
            return 0;
        };
        let ready = state as u16 as u32 & (events | ALWAYS) & !MODES;
        if ready == 0 {
            return 0;
        }
        if events & libc::EPOLLET as u32 != 0
            && let Some(seen) = seen
        {
            let arrivals = self.arrivals(key.1);
            let fresh_in = arrivals[0] != seen[0] && events & (IN_EVENTS | ALWAYS) != 0;
            let fresh_out = arrivals[1] != seen[1] && events & OUT_EVENTS != 0;
            let hung_up = arrivals != seen && ready & ALWAYS != 0;
            if !fresh_in && !fresh_out && !hung_up {
                return 0;
            }
        }
        ready
    }

    pub(super) fn epoll_has_inner_event(&mut self, set: DescriptionId) -> bool {
        let members = self.inner_members(set);
        members
            .into_iter()
            .any(|(key, events, seen)| self.member_ready(key, events, seen) != 0)
    }

    #[allow(clippy::type_complexity)]
    fn inner_members(
        &mut self,
        set: DescriptionId,
    ) -> Vec<((i32, DescriptionId), u32, Option<[u64; 2]>)> {
        let Ok(epoll) = self.epoll(set) else {
            return Vec::new();
        };
        let inner =
            |(_, member): &(&(i32, DescriptionId), &Member)| !member.outside && !member.spent;
        let behind = (
            std::ops::Bound::Excluded(epoll.last),
            std::ops::Bound::Unbounded,
        );
        epoll
            .members
            .range(behind)
            .chain(epoll.members.range(..=epoll.last))
            .filter(inner)
            .map(|(key, member)| (*key, member.events, member.seen))
            .collect()
    }

    pub(super) fn sys_epoll_wait(&mut self, call: &mut Call) -> Outcome {
        let [_, _, _, timeout, mask, size] = call.arguments;
        if !call.again && timeout as i32 >= 0 {
            call.limit = Some(self.now() + timeout as i32 as u64 * 1_000_000);
        }
        if call.number as i64 == libc::SYS_epoll_pwait {
            return self.with_mask(call, mask, size, Self::epoll_collect);
        }
        self.epoll_collect(call)
    }

    pub(super) fn sys_epoll_pwait2(&mut self, call: &mut Call) -> Outcome {
        let [_, _, _, timeout, mask, size] = call.arguments;
        if !call.again {
            call.limit = self.deadline(timeout, false, false)?;
        }
        self.with_mask(call, mask, size, Self::epoll_collect)
    }

    fn epoll_collect(&mut self, call: &mut Call) -> Outcome {
        let [epfd, address, most, ..] = call.arguments;
        let most = most as i32;
        if most <= 0 || most > (i32::MAX / 12) {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let set = self.kernel.fds.id(epfd as i32)?;
        let mut reports: Vec<(u32, u64)> = Vec::new();
        for (key, events, seen) in self.inner_members(set) {
            if reports.len() == most as usize {
                break;
            }
            let ready = self.member_ready(key, events, seen);
            if ready == 0 {
                continue;
            }
            let arrivals = self.arrivals(key.1);
            let epoll = self.epoll(set)?;
            epoll.last = key;
            if let Some(member) = epoll.members.get_mut(&key) {
                member.seen = Some(arrivals);
                member.spent = member.events & libc::EPOLLONESHOT as u32 != 0;
                reports.push((ready, member.data));
            }
        }
        let room = most as usize - reports.len();
        if room > 0 && self.epoll(set)?.outside > 0 {
            self.collect_outside(set, room, &mut reports)?;
        }
        if reports.is_empty() && !self.out_of_time(call) {
            let mut found = Found::default();
            self.watching(set, 0, &mut found);
            return self.wait_for_found(call, found);
        }
        for (index, (events, data)) in reports.iter().enumerate() {
            let event = libc::epoll_event {
                events: *events,
                u64: *data,
            };
            memory::put(address + index as u64 * 12, event)?;
        }
        Ok(reports.len() as i64)
    }

    /// In a copy: which members outside are ready is worked out from what has
    /// arrived. One with EPOLLET is told again when more has.
    fn collect_in_copy(
        &mut self,
        set: DescriptionId,
        room: usize,
        reports: &mut Vec<(u32, u64)>,
    ) -> Result<(), Halt> {
        let members: Vec<_> = self
            .epoll(set)?
            .members
            .iter()
            .filter(|(_, member)| member.outside && !member.spent)
            .map(|(key, _)| *key)
            .collect();
        for key in members.into_iter().take(room) {
            let ready = self.readiness_in_copy(key.1) as u16 as u32;
            let arrivals = [self.arrivals_in_copy(key.1), 0];
            let Some(member) = self.epoll(set)?.members.get_mut(&key) else {
                continue;
            };
            let always = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
            let ready = ready & (member.events | always);
            let edge = member.events & libc::EPOLLET as u32 != 0;
            if ready == 0 || (edge && member.seen == Some(arrivals)) {
                continue;
            }
            member.seen = Some(arrivals);
            member.spent = member.events & libc::EPOLLONESHOT as u32 != 0;
            reports.push((ready, member.data));
        }
        Ok(())
    }

    fn collect_outside(
        &mut self,
        set: DescriptionId,
        room: usize,
        reports: &mut Vec<(u32, u64)>,
    ) -> Result<(), Halt> {
        if self.io.is_copy() {
            return self.collect_in_copy(set, room, reports);
        }
        let number = self.epoll(set)?.host_number();
        let (_, answer) = self.io.external_bytes(libc::SYS_epoll_wait as u32, || {
            let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; room.min(4096)];
            // SAFETY: the buffer holds as many events as are asked for; the
            // call does not wait.
            let count =
                unsafe { libc::epoll_wait(number, events.as_mut_ptr(), events.len() as i32, 0) };
            let mut answer = Vec::new();
            for event in events.iter().take(count.max(0) as usize) {
                let (events, serial) = (event.events, event.u64);
                answer.extend_from_slice(&events.to_le_bytes());
                answer.extend_from_slice(&serial.to_le_bytes());
            }
            (i64::from(count), answer)
        })?;
        let epoll = self.epoll(set)?;
        for entry in answer.chunks_exact(12) {
            let mut word = [0; 8];
            word.copy_from_slice(&entry[4..]);
            let serial = u64::from_le_bytes(word);
            let events = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
            let key = epoll.serials.get(&serial);
            if let Some(member) = key.and_then(|key| epoll.members.get(key)) {
                reports.push((events, member.data));
            }
        }
        Ok(())
    }
}
