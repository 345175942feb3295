//! The third pass: stops at the moments that a report shows.
//!
//! A replay that halts before each access of a race (and where its thread was
//! created and its memory allocated) and looks around: the full stack from
//! unwind tables, the value there, the variable an address belongs to. No
//! history buffers are needed, so no stack is ever lost.

use race::{Frame, Moment, Site};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;
use symbols::{Module, ModuleMap, Registers, Roles, StackFrame, Usage, Variable, allocated_by};
use vm::space::Backing;
use vm::{Stop, Vm};

/// Frames of a stack before inlining.
const DEEPEST: usize = 64;

/// One stop to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Wanted {
    pub order: u64,
    pub moment: Moment,
    /// Memory to read there, before and after the next instruction.
    pub memory: Option<(u64, u32)>,
    /// Say what this address is.
    pub describe: Option<u64>,
    /// Bytes there.
    pub bytes: u64,
    /// The heap block that they are in: start and size.
    pub block: Option<(u64, u64)>,
    /// The thread whose stack the address is on.
    pub stack_of: Option<u32>,
}

/// What was seen at a stop.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Scene {
    pub stack: Vec<Frame>,
    /// The first place of the stack that has a source line, else the
    /// instruction.
    pub user_site: Site,
    /// The call that chose the object, where the access is in a helper.
    #[serde(default)]
    pub caller: Option<Site>,
    /// Who asked for memory, if this is a call of an allocator.
    #[serde(default)]
    pub allocated_by: Option<Site>,
    /// What bytes of a heap block are, by a pointer to it.
    #[serde(default)]
    pub pointed: Option<PointedAt>,
    pub before: Option<Vec<u8>>,
    pub after: Option<Vec<u8>>,
    /// The variable at the address asked about.
    pub variable: Option<Description>,
    /// The value there is the address of a table of virtual functions.
    #[serde(default)]
    pub virtual_table: bool,
    /// What the instruction does with what it accesses.
    #[serde(default)]
    pub usage: Usage,
}

impl Scene {
    /// A destructor made the object what it was already.
    pub fn keeps_virtual_table(&self) -> bool {
        self.virtual_table && self.after.is_some() && self.before == self.after
    }
}

/// What a variable is called.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Description {
    pub name: String,
    pub path: String,
    pub start: u64,
    pub function: Option<String>,
}

impl From<Variable> for Description {
    fn from(variable: Variable) -> Self {
        Description {
            name: variable.name,
            path: variable.path,
            start: variable.start,
            function: variable.function,
        }
    }
}

/// Bytes of a heap block: `node.next` of whatever node, and as one would write
/// it, `nodes[3].next`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PointedAt {
    pub kind: String,
    pub path: String,
}

/// The modules of the vm's guest as they are mapped now.
pub fn modules(vm: &Vm) -> ModuleMap {
    let mut map = ModuleMap::new();
    for (range, mapping) in vm.space.mappings() {
        if let Backing::File { path, offset } = &mapping.backing {
            map.insert(range, path, *offset);
        }
    }
    map
}

fn registers(vm: &Vm, thread: u32) -> Option<Registers> {
    vm.registers(thread).map(|regs| Registers {
        general: regs.gpr,
        rip: regs.rip,
    })
}

pub fn read_word(address: u64) -> Option<u64> {
    vm::memory::get::<u64>(address).ok()
}

/// Runs through all stops, in their order, and says what was seen at each.
///
/// # Errors
/// When the replay fails.
pub fn visit(vm: &mut Vm, mut wanted: Vec<Wanted>) -> Result<Vec<(Wanted, Scene)>, vm::Error> {
    wanted.sort_by_key(|stop| stop.order);
    let mut map: Option<(u64, ModuleMap, Roles)> = None;
    let mut scenes: Vec<(Wanted, Scene)> = Vec::new();
    let mut seen: HashMap<(Moment, Option<u64>), usize> = HashMap::new();
    // A moment may be wanted for several addresses: one wide access races with
    // several others.
    for stops in wanted.chunk_by(|one, next| one.moment == next.moment) {
        let at = stops[0].moment;
        let known = |stop: &Wanted| seen.get(&(stop.moment, stop.describe)).copied();
        if stops.iter().all(|stop| known(stop).is_some()) {
            for stop in stops {
                let scene = known(stop).map(|index| scenes[index].1.clone());
                scenes.push((*stop, scene.unwrap_or_default()));
            }
            continue;
        }
        let moment = Moment { part: 0, ..at };
        if !matches!(vm.run(Some(moment))?, Stop::Reached(_)) {
            break;
        }
        // Mappings change at system calls only; counting them is cheaper than
        // opening all modules at every stop.
        let shape = vm.space.mappings().count() as u64;
        if map.as_ref().is_none_or(|(known, ..)| *known != shape) {
            map = Some((shape, modules(vm), Roles::default()));
        }
        let Some((_, map, roles)) = &mut map else {
            continue;
        };
        let first = scenes.len();
        for stop in stops {
            seen.insert((stop.moment, stop.describe), scenes.len());
            scenes.push((*stop, look(vm, map, roles, stop)));
        }
        look_after(vm, at, &mut scenes[first..])?;
    }
    Ok(scenes)
}

fn look(vm: &Vm, map: &ModuleMap, roles: &mut Roles, stop: &Wanted) -> Scene {
    let thread = stop.moment.thread;
    let mut scene = Scene::default();
    if vm.executed(thread) != stop.moment.count {
        return scene;
    }
    let Some(registers) = registers(vm, thread) else {
        return scene;
    };
    let frames = map.walk(&registers, &mut read_word, DEEPEST);
    scene.stack = frames
        .iter()
        .flat_map(|frame| map.frames(frame.address, frame.is_return_address))
        .collect();
    let mut object = None;
    match stop.describe {
        Some(address) => {
            let variable = map
                .variable_over(address, stop.bytes)
                .or_else(|| local(vm, map, stop.stack_of?, address, stop.bytes));
            // Code has no addresses of stacks in it.
            object = variable
                .as_ref()
                .filter(|variable| variable.function.is_none())
                .map(|variable| variable.start..variable.start.saturating_add(variable.size));
            scene.variable = variable.map(Description::from);
        }
        None => scene.allocated_by = allocated_by(map, &frames),
    }
    let chosen = roles.chosen(map, &frames, object.as_ref(), &mut read_word);
    scene.user_site = chosen.site.unwrap_or_else(|| map.site(registers.rip));
    scene.caller = chosen.caller;
    if let (Some(address), Some((start, size))) = (stop.describe, stop.block) {
        let block = start..start.saturating_add(size);
        scene.pointed = pointed(map, &frames, (address, stop.bytes), &block);
    }
    if let Some((address, size)) = stop.memory {
        scene.usage = map.usage_at(registers.rip);
        scene.before = vm::memory::read_vec(address, bytes_shown(size)).ok();
        scene.virtual_table = size == 8
            && read_word(address)
                .and_then(|value| map.variable_at(value))
                .is_some_and(|variable| {
                    ["vtable for ", "{vtable("]
                        .iter()
                        .any(|name| variable.name.starts_with(name))
                });
    }
    scene
}

/// Steps over the access and reads what it left.
fn look_after(vm: &mut Vm, at: Moment, scenes: &mut [(Wanted, Scene)]) -> Result<(), vm::Error> {
    if scenes.iter().all(|(_, scene)| scene.before.is_none()) {
        return Ok(());
    }
    let next = Moment::new(at.thread, at.count + 1);
    if !matches!(vm.run(Some(next))?, Stop::Reached(_)) {
        return Ok(());
    }
    for (stop, scene) in scenes {
        if let (Some((address, size)), Some(_)) = (stop.memory, &scene.before) {
            scene.after = vm::memory::read_vec(address, bytes_shown(size)).ok();
        }
    }
    Ok(())
}

/// Values are shown up to this many bytes.
fn bytes_shown(size: u32) -> usize {
    size.min(16) as usize
}

/// Callers that are asked what a helper was given.
const ASKED: usize = 6;

/// What bytes of a heap block are: by the type of a pointer in the innermost
/// frame that has one, and by the name of a global one.
fn pointed(
    map: &ModuleMap,
    frames: &[StackFrame],
    bytes: (u64, u64),
    block: &Range<u64>,
) -> Option<PointedAt> {
    let own = |module: &Module| module.has_debug_info() && !is_of_language(module.name());
    let global = map.globally_pointed_at(own, &mut read_word, bytes, block);
    let in_scope = frames
        .iter()
        .take(ASKED)
        .find_map(|frame| map.pointed_at(frame, &mut read_word, bytes, block));
    let path = global.as_ref().or(in_scope.as_ref())?.path.clone();
    Some(PointedAt {
        kind: in_scope.or(global)?.kind,
        path,
    })
}

/// Libraries that point to no memory of the program's.
fn is_of_language(module: &str) -> bool {
    ["libc.", "libstdc++", "ld-linux", "libpthread", "libm."]
        .iter()
        .any(|begin| module.starts_with(begin))
}

fn local(
    vm: &Vm,
    map: &ModuleMap,
    thread: u32,
    address: u64,
    bytes: u64,
) -> Option<symbols::Variable> {
    let registers = registers(vm, thread)?;
    map.walk(&registers, &mut read_word, DEEPEST)
        .iter()
        .find_map(|frame| map.local_over(frame, &mut read_word, address, bytes))
}
