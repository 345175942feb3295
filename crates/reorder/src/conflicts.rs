//! Accesses in conflict with the first one, while that is held back.
//!
//! With the first access held its thread goes no further, and another may go
//! another way: the second access may come at another instruction than the
//! recorded one (paper 003, section 4.3; paper 000 fails there).

use race::{Instance, Moment};
use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use vm::observe::{AccessEvent, Interest, Observer};
use vm::{Error, Stop, Vm};

/// Moments of the accesses found so far.
pub type Found = Rc<RefCell<Vec<Moment>>>;

struct Conflicts {
    instance: Instance,
    first_writes: bool,
    found: Found,
}

impl Conflicts {
    fn note(&self, moment: Moment, start: u64, size: u64, write: bool) {
        let racy = self.instance.address;
        let end = racy + u64::from(self.instance.size.max(1));
        let meets = start < end && racy < start.saturating_add(size);
        if meets && (write || self.first_writes) {
            self.found.borrow_mut().push(moment);
        }
    }
}

impl Observer for Conflicts {
    fn interest(&self) -> Interest {
        Interest {
            accesses: true,
            ..Interest::default()
        }
    }

    fn accesses(&mut self, batch: &[AccessEvent]) {
        for access in batch {
            let size = u64::from(access.size);
            self.note(access.moment, access.address, size, access.write);
        }
    }

    fn kernel_access(&mut self, moment: Moment, address: u64, size: u64, write: bool) {
        self.note(moment, address, size, write);
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Notes every access to the racy bytes from here on that is in conflict with
/// the first.
pub fn watch(vm: &mut Vm, instance: Instance, first_writes: bool) -> Found {
    let found = Found::default();
    vm.observe(Box::new(Conflicts {
        instance,
        first_writes,
        found: found.clone(),
    }));
    found
}

/// In a copy just before the first access: holds its thread and runs the others
/// for up to `limit` instructions until one of them makes an access in conflict
/// with it, preferably the thread of the second.
pub fn other_access(
    vm: &mut Vm,
    instance: Instance,
    first_writes: bool,
    limit: u64,
) -> Result<Option<Moment>, Error> {
    let found = watch(vm, instance, first_writes);
    vm.freeze(instance.first.thread, true);
    let mut left = limit;
    // Portions that grow: most conflicts come soon.
    let mut portion = 50_000;
    loop {
        vm.limit(portion.min(left));
        let stop = vm.run(None)?;
        let own = |moment: &&Moment| moment.thread == instance.second.thread;
        let candidate = found.borrow().iter().find(own).copied();
        left = left.saturating_sub(portion);
        if candidate.is_some() || stop != Stop::Limit || left == 0 {
            return Ok(candidate.or(found.borrow().first().copied()));
        }
        portion *= 2;
    }
}
