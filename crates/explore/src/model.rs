//! Under which memory model executions are run.
//!
//! Paper 003, section 4.5, lets reads return older values as a weak model
//! allows; that comes as another implementation of the trait.

use vm::Vm;

pub trait MemoryModel {
    /// The name in reports: `sc`, `tso`.
    fn name(&self) -> &'static str;

    /// Called in every copy at the race point, before the accesses.
    fn begin(&self, vm: &mut Vm);
}

/// Every access is seen by all threads at once, in one order: what the vm does
/// by itself.
pub struct SequentialConsistency;

impl MemoryModel for SequentialConsistency {
    fn name(&self) -> &'static str {
        "sc"
    }

    fn begin(&self, _vm: &mut Vm) {}
}
