//! What goes wrong in an execution although it goes on: memory errors and
//! broken invariants (paper 003, sections 3.5 and 4.6: violations of the
//! specification other than crashes and hangs), and reads that see what no
//! write has written (section 7).
//!
//! `Watching` follows a replay from its beginning: allocators (`heap`,
//! `allocators`) and the variables of invariants (`invariant`). At the race
//! point it begins to judge; copies made from there take it along. Stacks are
//! read in a second run of the same execution (`scenes`).
//!
//! Guarantee: watching changes nothing; judging leaves out frees, in both
//! orders alike. Whatever is found is found again when its evidence is
//! replayed.

mod allocators;
mod finding;
mod heap;
mod invariant;
mod scenes;
mod shadow;
mod torn;

pub use allocators::{AllocatorError, Custom, guarded_functions};
pub use finding::{ErrorKind, Finding};
pub use invariant::{Invariant, InvariantError};
pub use torn::Mixed;

pub(crate) use scenes::{Scenes, fill, recorded, wanted};
pub(crate) use torn::{look as look_for_torn, watch_births};

use crate::names;
use allocators::{Followed, NOT_FOLLOWED, Role};
use heap::{Heap, Wrong};
use invariant::{Violation, Watched, When, Written};
use race::Moment;
use serde::{Deserialize, Serialize};
use shadow::Marks;
use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use symbols::{Module, ModuleMap};
use vm::Vm;
use vm::context::{Registers, reg};
use vm::observe::known::Compare;
use vm::observe::{AccessEvent, AfterHook, Interest, Observer, SyscallEvent, ThreadEvent};
use vm::record::Recording;

/// Findings kept of one execution.
const KEPT: usize = 16;

/// What is watched, in the user's words.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checks {
    pub heap: bool,
    pub allocators: Vec<String>,
    pub invariants: Vec<String>,
}

/// What is wrong with what the user asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    #[error(transparent)]
    Allocator(#[from] AllocatorError),
    #[error(transparent)]
    Invariant(#[from] InvariantError),
    #[error("--allocator: {program} has no function `{function}`; give a name from its symbols")]
    NoFunction { program: String, function: String },
}

impl Checks {
    /// All that is watched unless the user says otherwise.
    pub fn standard() -> Checks {
        Checks {
            heap: true,
            ..Checks::default()
        }
    }

    fn is_none(&self) -> bool {
        !self.heap && self.invariants.is_empty()
    }

    /// Whether all of it makes sense for this program.
    pub fn verify(&self, program: &Path) -> Result<(), CheckError> {
        self.read(program)?;
        Ok(())
    }

    fn read(&self, program: &Path) -> Result<(Vec<Custom>, Vec<Invariant>), CheckError> {
        let module = Module::open(program);
        let mut customs = Vec::new();
        for text in &self.allocators {
            let custom = Custom::parse(text)?;
            for (function, _) in &custom.functions {
                // It may be a library's, which is not known yet.
                let dynamic = module
                    .sections()
                    .iter()
                    .any(|section| section.name == ".interp");
                if !dynamic && module.functions_named(function).is_empty() {
                    return Err(CheckError::NoFunction {
                        program: module.name().to_string(),
                        function: function.clone(),
                    });
                }
            }
            customs.push(custom);
        }
        let invariants = self
            .invariants
            .iter()
            .map(|text| Invariant::parse(text, &module))
            .collect::<Result<_, _>>()?;
        Ok((customs, invariants))
    }

    /// Functions of allocators that the user has named.
    pub(crate) fn custom_functions(&self) -> Vec<String> {
        self.allocators
            .iter()
            .filter_map(|text| Custom::parse(text).ok())
            .flat_map(|custom| custom.functions)
            .map(|(name, _)| name)
            .collect()
    }
}

/// A function of the program that is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Function {
    Allocator(Followed),
    /// Returns 0 when a lock was taken.
    Lock,
    Unlock,
    /// Others may see what was written, unless a lock is held.
    Release,
    /// Gives up the lock it was called with.
    Wait,
}

/// Functions that lock, unlock and release, for invariants.
const SYNCHRONISATION: &[(&str, Function)] = &[
    ("pthread_mutex_lock", Function::Lock),
    ("pthread_mutex_trylock", Function::Lock),
    ("pthread_mutex_timedlock", Function::Lock),
    ("pthread_mutex_clocklock", Function::Lock),
    ("pthread_spin_lock", Function::Lock),
    ("pthread_spin_trylock", Function::Lock),
    ("pthread_rwlock_rdlock", Function::Lock),
    ("pthread_rwlock_wrlock", Function::Lock),
    ("pthread_rwlock_tryrdlock", Function::Lock),
    ("pthread_rwlock_trywrlock", Function::Lock),
    ("pthread_mutex_unlock", Function::Unlock),
    ("pthread_spin_unlock", Function::Unlock),
    ("pthread_rwlock_unlock", Function::Unlock),
    ("pthread_cond_wait", Function::Wait),
    ("pthread_cond_timedwait", Function::Wait),
    ("pthread_cond_clockwait", Function::Wait),
    ("pthread_barrier_wait", Function::Release),
    ("pthread_create", Function::Release),
    ("pthread_exit", Function::Release),
    ("sem_post", Function::Release),
];

/// Whose code an instruction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Program,
    CLibrary,
    /// The dynamic linker's or an allocator's, which know what they do.
    Trusted,
}

fn origin_of(name: &str) -> Origin {
    let begins = |names: &[&str]| names.iter().any(|begin| name.starts_with(begin));
    if begins(&["ld-linux", "ld-2", "ld.so", "[vdso]"]) || begins(allocators::LIBRARIES) {
        Origin::Trusted
    } else if begins(&["libc.", "libc-", "libpthread", "ld-musl"]) {
        Origin::CLibrary
    } else {
        Origin::Program
    }
}

/// Where the recorded program was started.
fn directory_of(recording: &Recording) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::OsStr::from_bytes(&recording.manifest.directory).into()
}

/// The recorded program, wherever it was called from.
pub fn program_of(recording: &Recording) -> PathBuf {
    directory_of(recording).join(recording.program_path())
}

fn is_same_file(one: &Path, other: &Path, directory: &Path) -> bool {
    let real = |path: &Path| directory.join(path).canonicalize().ok();
    one == other || matches!((real(one), real(other)), (Some(one), Some(other)) if one == other)
}

/// The functions of these names in a module that was just mapped.
fn functions_in<'a>(
    modules: &ModuleMap,
    range: &Range<u64>,
    path: &Path,
    names: impl Iterator<Item = &'a String>,
) -> Vec<(&'a String, u64)> {
    let loaded = modules.modules();
    let Some(loaded) = loaded
        .iter()
        .find(|loaded| loaded.module.path() == path && loaded.range.contains(&range.start))
    else {
        return Vec::new();
    };
    if matches!(loaded.module.name(), name if name.starts_with("ld-linux") || name.starts_with("ld-2") || name.starts_with("ld.so"))
    {
        return Vec::new();
    }
    // The C++ library's operators call malloc and free, which are followed.
    let in_terms_of_malloc = ["libstdc++", "libc++"]
        .iter()
        .any(|library| loaded.module.name().starts_with(library));
    names
        .filter(|name| !(in_terms_of_malloc && name.starts_with("_Z")))
        .flat_map(|name| {
            loaded
                .module
                .functions_named(name)
                .into_iter()
                .filter(|function| !function.indirect)
                .map(move |function| (name, function.start.wrapping_add(loaded.bias)))
        })
        .collect()
}

struct State {
    heap: Option<Heap>,
    invariants: Vec<Watched>,
    /// The file whose variables invariants are about, and where it is mapped.
    program: PathBuf,
    directory: PathBuf,
    bias: Option<u64>,
    names: Vec<(String, Function)>,
    functions: HashMap<u64, Function>,
    /// What was found in modules mapped before.
    mapped: HashMap<(u64, PathBuf), Vec<u64>>,
    modules: Rc<ModuleMap>,
    marks: Marks,
    /// Allocators seen that hand out parts of blocks, by their names.
    not_followed: Vec<&'static str>,
    followed: bool,
    /// Locks held, by thread.
    held: HashMap<u32, u32>,
    /// Instructions behind writes that `@write` invariants are about.
    after: HashSet<u64>,
    more: Vec<u64>,
    judging: bool,
    findings: Vec<Finding>,
    seen: HashSet<(ErrorKind, u64)>,
    origins: HashMap<u64, Origin>,
}

impl State {
    fn origin(&mut self, pc: u64) -> Origin {
        if let Some(known) = self.origins.get(&pc) {
            return *known;
        }
        let origin = self
            .modules
            .find(pc)
            .map_or(Origin::Program, |(module, _)| origin_of(module.name()));
        self.origins.insert(pc, origin);
        origin
    }

    fn report(&mut self, finding: Finding) {
        if self.judging
            && self.findings.len() < KEPT
            && self.seen.insert((finding.kind, finding.site))
        {
            self.findings.push(finding);
        }
    }

    fn access(&mut self, access: &AccessEvent) {
        let size = u64::from(access.size);
        let Some(heap) = &self.heap else {
            return;
        };
        if !heap.may_be_wrong(access.address, size) || heap.is_inside(access.moment.thread) {
            return;
        }
        let Some(wrong) = heap.judge(access.address, size, access.write) else {
            return;
        };
        if self.origin(access.pc) == Origin::Trusted {
            return;
        }
        self.wrong(
            wrong,
            access.moment,
            access.pc,
            access.address,
            size,
            access.write,
        );
    }

    fn wrong(
        &mut self,
        wrong: Wrong,
        moment: Moment,
        pc: u64,
        address: u64,
        size: u64,
        write: bool,
    ) {
        self.report(Finding {
            kind: wrong.kind,
            moment: Moment::new(moment.thread, moment.count),
            pc,
            site: pc,
            address,
            size,
            write,
            memory: wrong.memory,
            detail: String::new(),
            stack: Vec::new(),
            allocated_at: Vec::new(),
            freed_at: Vec::new(),
        });
    }

    /// A call of an allocator that it should not get.
    fn wrong_call(&mut self, wrong: Wrong, moment: Moment, registers: &Registers, block: u64) {
        if !self.judging {
            return;
        }
        let stack = registers.gpr[reg::RSP];
        let caller = vm::memory::get::<u64>(stack).unwrap_or(0);
        // The C library frees what it keeps of a thread that ends by the same
        // function, although the program has freed it before.
        let tidies = self
            .modules
            .function_at(caller.wrapping_sub(1))
            .is_some_and(|function| {
                ["tcache", "freeres", "arena"]
                    .iter()
                    .any(|part| function.name.contains(part))
            });
        if tidies || self.origin(caller) != Origin::Program {
            return;
        }
        let mut detail = String::new();
        if wrong.memory.is_none() {
            // Not a block that anybody knows: an error only where no block
            // can be.
            const STACK: u64 = 1 << 20;
            let on_stack = block >= stack
                && block - stack < STACK
                && self
                    .heap
                    .as_ref()
                    .is_none_or(|heap| !heap.is_allocators(block));
            if let Some(variable) = self.modules.variable_at(block) {
                detail = format!("the variable `{}`", variable.path);
            } else if on_stack {
                detail = "memory of the stack".to_string();
            } else {
                return;
            }
        }
        self.report(Finding {
            kind: wrong.kind,
            moment: Moment::new(moment.thread, moment.count),
            pc: registers.rip,
            site: caller,
            address: block,
            size: 0,
            write: true,
            memory: wrong.memory,
            detail,
            stack: Vec::new(),
            allocated_at: Vec::new(),
            freed_at: Vec::new(),
        });
    }

    fn violated(&mut self, violation: Violation) {
        let Violation {
            text,
            values,
            written,
        } = violation;
        let values: Vec<String> = values.iter().map(i64::to_string).collect();
        self.report(Finding {
            kind: ErrorKind::Invariant,
            moment: Moment::new(written.moment.thread, written.moment.count),
            pc: written.pc,
            site: xxhash_rust::xxh3::xxh3_64(text.as_bytes()),
            address: written.address,
            size: written.size,
            write: true,
            memory: None,
            detail: format!("`{text}` (values read: {})", values.join(", ")),
            stack: Vec::new(),
            allocated_at: Vec::new(),
            freed_at: Vec::new(),
        });
    }

    fn released(&mut self, thread: u32) {
        let Some(bias) = self.bias else {
            return;
        };
        let violations: Vec<Violation> = self
            .invariants
            .iter_mut()
            .filter_map(|watched| watched.released(thread, bias))
            .collect();
        for violation in violations {
            self.violated(violation);
        }
    }

    /// Writes to what invariants read, in a batch of accesses.
    fn writes(&mut self, batch: &[AccessEvent]) {
        let Some(bias) = self.bias else {
            return;
        };
        let mut last = None;
        for (index, access) in batch.iter().enumerate().filter(|(_, access)| access.write) {
            let written = Written {
                moment: access.moment,
                pc: access.pc,
                address: access.address,
                size: u64::from(access.size),
            };
            for watched in &mut self.invariants {
                if watched.wrote(written) {
                    last = Some(index);
                    if watched.invariant.when == When::Write
                        && let Some(next) = behind(access.pc)
                        && self.after.insert(next)
                    {
                        self.more.push(next);
                    }
                }
            }
        }
        if let Some(last) = last {
            // Seen for the first time from here: the values are those of now.
            let written_now = batch.len() - last <= 1;
            let violations: Vec<Violation> = self
                .invariants
                .iter_mut()
                .filter(|watched| written_now && watched.invariant.when == When::Write)
                .filter_map(|watched| watched.after_write(bias))
                .collect();
            for violation in violations {
                self.violated(violation);
            }
            self.mark_reads();
        }
        // Locked instructions outside locks release as well; what they show is
        // known where nothing was written after them.
        for access in batch
            .iter()
            .skip(last.unwrap_or(0))
            .filter(|access| access.locked && access.write)
        {
            let thread = access.moment.thread;
            if self.held.get(&thread).copied().unwrap_or(0) == 0
                && self.origin(access.pc) == Origin::Program
            {
                self.released(thread);
            }
        }
    }

    /// Makes sure that writes to what invariants read are seen.
    fn mark_reads(&mut self) {
        let Some(bias) = self.bias else {
            return;
        };
        for watched in &mut self.invariants {
            watched.look(bias);
            for (address, size) in watched.reads() {
                self.marks.set(*address..address + size);
            }
        }
    }
}

/// The address of the next instruction.
fn behind(pc: u64) -> Option<u64> {
    let mut code = [0; 15];
    let mut length = code.len();
    while length > 0 && vm::memory::read(pc, &mut code[..length]).is_err() {
        length -= 1;
    }
    let mut decoder =
        iced_x86::Decoder::with_ip(64, &code[..length], pc, iced_x86::DecoderOptions::NONE);
    let instruction = decoder.decode();
    (!instruction.is_invalid()).then(|| instruction.next_ip())
}

/// The observer that follows an execution.
struct Follower(Rc<RefCell<State>>);

impl Observer for Follower {
    fn interest(&self) -> Interest {
        let state = self.0.borrow();
        Interest {
            accesses: !state.invariants.is_empty() || (state.judging && state.heap.is_some()),
            only_unknown: true,
            stack: false,
        }
    }

    fn known_by(&self, _thread: u32) -> Compare {
        Compare::Zero
    }

    fn accesses(&mut self, batch: &[AccessEvent]) {
        let mut state = self.0.borrow_mut();
        if state.judging {
            for access in batch {
                state.access(access);
            }
        }
        if !state.invariants.is_empty() {
            state.writes(batch);
        }
    }

    fn kernel_access(&mut self, moment: Moment, address: u64, size: u64, write: bool) {
        let mut state = self.0.borrow_mut();
        let access = AccessEvent {
            moment,
            pc: 0,
            address,
            size: size.min(u64::from(u32::MAX)) as u32,
            read: !write,
            write,
            locked: false,
        };
        if state.judging {
            state.access(&access);
        }
        if !state.invariants.is_empty() {
            state.writes(&[access]);
        }
    }

    fn syscall(&mut self, event: &SyscallEvent, _registers: &Registers) {
        let mut state = self.0.borrow_mut();
        if let Some(heap) = &mut state.heap {
            heap.system_call(
                event.moment.thread,
                event.number,
                &event.arguments,
                event.result,
            );
        }
    }

    fn thread(&mut self, _moment: Moment, event: ThreadEvent) {
        if let ThreadEvent::Exited { thread } = event {
            self.0.borrow_mut().released(thread);
        }
    }

    fn code_mapped(&mut self, range: Range<u64>, path: &Path, offset: u64) -> Vec<u64> {
        let mut state = self.0.borrow_mut();
        let key = (range.start, path.to_path_buf());
        if let Some(known) = state.mapped.get(&key) {
            return known.clone();
        }
        let state = &mut *state;
        let modules = Rc::make_mut(&mut state.modules);
        modules.insert(range.clone(), path, offset);
        state.origins.clear();
        let found = functions_in(
            modules,
            &range,
            path,
            state.names.iter().map(|(name, _)| name),
        );
        let found: Vec<(u64, Function)> = found
            .into_iter()
            .filter_map(|(name, pc)| {
                let (_, function) = state.names.iter().find(|(known, _)| known == name)?;
                Some((pc, *function))
            })
            .collect();
        state.followed |= found.iter().any(|(_, function)| {
            matches!(
                function,
                Function::Allocator(Followed {
                    role: Role::Allocate { .. },
                    ..
                })
            )
        });
        for loaded in modules.modules() {
            if loaded.module.path() != path {
                continue;
            }
            if is_same_file(path, &state.program, &state.directory) {
                state.bias = Some(loaded.bias);
            }
            for (function, words) in NOT_FOLLOWED {
                if !loaded.module.functions_named(function).is_empty()
                    && !state.not_followed.contains(words)
                {
                    state.not_followed.push(words);
                }
            }
        }
        state.functions.extend(found.iter().copied());
        let pcs: Vec<u64> = found.into_iter().map(|(pc, _)| pc).collect();
        state.mapped.insert(key, pcs.clone());
        state.mark_reads();
        pcs
    }

    fn unmapped(&mut self, _moment: Moment, range: Range<u64>) {
        let mut state = self.0.borrow_mut();
        if let Some(heap) = &mut state.heap {
            heap.unmapped(&range);
        }
        let gone = |start: u64| range.contains(&start);
        state.mapped.retain(|(start, _), _| !gone(*start));
        state.functions.retain(|pc, _| !gone(*pc));
    }

    fn hook(&mut self, moment: Moment, registers: &Registers) -> AfterHook {
        let mut state = self.0.borrow_mut();
        let state = &mut *state;
        if state.after.contains(&registers.rip)
            && let Some(bias) = state.bias
        {
            let violations: Vec<Violation> = state
                .invariants
                .iter_mut()
                .filter(|watched| watched.invariant.when == When::Write)
                .filter_map(|watched| watched.after_write(bias))
                .collect();
            for violation in violations {
                state.violated(violation);
            }
        }
        let Some(function) = state.functions.get(&registers.rip).copied() else {
            return AfterHook::Nothing;
        };
        match function {
            Function::Allocator(followed) => {
                let Some(heap) = &mut state.heap else {
                    return AfterHook::Nothing;
                };
                let (after, wrong) = heap.called(followed, moment, registers, state.judging);
                if let Some(wrong) = wrong {
                    let block = match followed.role {
                        Role::Free { block } => block,
                        _ => 0,
                    };
                    let block = heap::argument(registers, block);
                    state.wrong_call(wrong, moment, registers, block);
                }
                after
            }
            Function::Lock => AfterHook::TellReturn,
            Function::Unlock => {
                let held = state.held.entry(moment.thread).or_default();
                *held = held.saturating_sub(1);
                state.released(moment.thread);
                AfterHook::Nothing
            }
            Function::Wait => {
                state.released(moment.thread);
                AfterHook::Nothing
            }
            Function::Release => {
                if state.held.get(&moment.thread).copied().unwrap_or(0) == 0 {
                    state.released(moment.thread);
                }
                AfterHook::Nothing
            }
        }
    }

    fn more_hooks(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.0.borrow_mut().more)
    }

    fn returned(&mut self, moment: Moment, function: u64, registers: &Registers) {
        let mut state = self.0.borrow_mut();
        match state.functions.get(&function).copied() {
            Some(Function::Allocator(_)) => {
                if let Some(heap) = &mut state.heap {
                    heap.returned(function, moment, registers);
                }
                if !state.invariants.is_empty() {
                    state.mark_reads();
                }
            }
            Some(Function::Lock) if registers.gpr[reg::RAX] as u32 == 0 => {
                *state.held.entry(moment.thread).or_default() += 1;
            }
            _ => {}
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// A replay that is watched, and every copy made of it.
#[derive(Clone)]
pub struct Watching {
    state: Rc<RefCell<State>>,
}

impl Watching {
    /// Watches a replay from its beginning; none if nothing is to be watched.
    pub fn begin(
        vm: &mut Vm,
        checks: &Checks,
        recording: &Recording,
    ) -> Result<Option<Watching>, vm::Error> {
        if checks.is_none() {
            return Ok(None);
        }
        let program = program_of(recording);
        let (customs, invariants) = checks
            .read(&program)
            .map_err(|error| vm::Error::Machine(error.to_string()))?;
        let marks = Marks::install().map_err(|error| {
            vm::Error::Machine(format!(
                "cannot reserve 4 TiB of address space for shadow memory: {error}; raise \
                 `ulimit -v`, or set vm.overcommit_memory to 0 or 1, or use --no-heap"
            ))
        })?;
        let mut names: Vec<(String, Function)> = Vec::new();
        if checks.heap {
            for (name, role) in customs.into_iter().flat_map(|custom| custom.functions) {
                names.push((name, Function::Allocator(Followed { role, custom: true })));
            }
            for (name, role) in allocators::standard() {
                let followed = Followed {
                    role,
                    custom: false,
                };
                names.push((name, Function::Allocator(followed)));
            }
        }
        if !invariants.is_empty() {
            names.extend(
                SYNCHRONISATION
                    .iter()
                    .map(|(name, function)| (name.to_string(), *function)),
            );
        }
        let state = State {
            heap: checks
                .heap
                .then(|| Heap::guarded(recording.manifest.guard.unwrap_or(0))),
            invariants: invariants.into_iter().map(Watched::new).collect(),
            program,
            directory: directory_of(recording),
            bias: None,
            names,
            functions: HashMap::new(),
            mapped: HashMap::new(),
            modules: Rc::new(ModuleMap::new()),
            marks,
            not_followed: Vec::new(),
            followed: false,
            held: HashMap::new(),
            after: HashSet::new(),
            more: Vec::new(),
            judging: false,
            findings: Vec::new(),
            seen: HashSet::new(),
            origins: HashMap::new(),
        };
        let state = Rc::new(RefCell::new(state));
        vm.observe(Box::new(Follower(state.clone())));
        Ok(Some(Watching { state }))
    }

    /// At the race point: from here on what is wrong counts.
    pub fn judge(&self, vm: &mut Vm) {
        {
            let mut state = self.state.borrow_mut();
            let state = &mut *state;
            state.modules = names::modules(vm);
            state.origins.clear();
            state.judging = true;
            for watched in &mut state.invariants {
                watched.begin();
            }
            if let Some(heap) = &mut state.heap {
                heap.mark(state.marks);
            }
            state.mark_reads();
        }
        // The observer wants more than before.
        for observer in vm.take_observers() {
            vm.observe(observer);
        }
    }

    /// The program has ended: what it leaves must be right as well.
    pub fn end(&self) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let Some(bias) = state.bias else {
            return;
        };
        let violations: Vec<Violation> = state
            .invariants
            .iter_mut()
            .filter_map(|watched| watched.ended(bias))
            .collect();
        for violation in violations {
            state.violated(violation);
        }
    }

    /// What was found since the race point, without stacks.
    pub fn findings(&self) -> Vec<Finding> {
        self.state.borrow().findings.clone()
    }

    /// What was not watched, in sentences.
    pub fn not_checked(&self) -> Vec<String> {
        let state = self.state.borrow();
        let mut sentences = Vec::new();
        if state.heap.is_none() {
            return sentences;
        }
        if !state.followed {
            sentences.push(
                "the heap was not checked: the program and its libraries have no malloc symbol \
                 (name the functions with --allocator)"
                    .to_string(),
            );
        }
        for words in &state.not_followed {
            sentences.push(format!(
                "the heap was not checked inside {words}, which hands out parts of larger blocks"
            ));
        }
        sentences
    }
}

/// Drops what only code of the C library and of the linker did, and what has
/// no stack to tell.
pub(crate) fn keep_own(findings: &mut Vec<Finding>) {
    findings.retain(|finding| {
        finding.stack.iter().any(|frame| {
            frame.module.as_ref().is_none_or(|module| {
                let name = module.rsplit('/').next().unwrap_or(module);
                origin_of(name) == Origin::Program
            })
        })
    });
}

/// Findings of each of two executions that the other does not have, and those
/// that both have.
pub(crate) fn compare(one: &[Finding], other: &[Finding]) -> ([Vec<Finding>; 2], Vec<Finding>) {
    let without = |these: &[Finding], those: &[Finding]| -> Vec<Finding> {
        these
            .iter()
            .filter(|finding| !those.iter().any(|known| known.is_same(finding)))
            .cloned()
            .collect()
    };
    let common = one
        .iter()
        .filter(|finding| other.iter().any(|known| known.is_same(finding)))
        .cloned()
        .collect();
    ([without(one, other), without(other, one)], common)
}

/// What tells findings apart before their stacks are known.
pub(crate) fn sites(findings: &[Finding]) -> BTreeSet<(ErrorKind, u64)> {
    findings
        .iter()
        .map(|finding| (finding.kind, finding.site))
        .collect()
}
