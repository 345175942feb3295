//! Who chose the object of an access, and who asked for memory.
//!
//! The instruction of a race may be in a function that works on whatever it is
//! given (`Role`). Then the race is about the call that gave it the
//! object: the innermost caller that is not such a function itself, or whose code
//! mentions the variable. Recursion and layers of helpers in between do not
//! count, so that one way to use an object is one race. Where it is decided by
//! the code alone, the answer is the same in every run; only who is on the stack
//! is looked up at the access.

use crate::cfi::ReadMemory;
use crate::map::ModuleMap;
use crate::registers::Registers;
use crate::roles::Role;
use crate::unwind::StackFrame;
use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind, Register};
use race::Site;
use std::collections::HashMap;
use std::ops::Range;

/// Code of one function that is looked through for a variable.
const LARGEST_FUNCTION: u64 = 1 << 18;

/// Where an access belongs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chosen {
    /// The innermost place with a source line.
    pub site: Option<Site>,
    /// The call that chose the object, if that is another one.
    pub caller: Option<Site>,
}

/// Answers that code alone gives, kept.
#[derive(Default)]
pub struct Roles {
    /// By begin of the function and of the variable.
    mentioned: HashMap<(u64, u64), bool>,
}

fn is_c_library(site: &Site) -> bool {
    site.module.as_deref().is_some_and(|module| {
        ["libc.", "libpthread", "ld-linux"]
            .iter()
            .any(|begin| module.starts_with(begin))
    })
}

/// Functions of a frame that count: not those of the C library, and those with
/// source lines only, unless there are none on the whole stack.
fn own_roles(map: &ModuleMap, frame: &StackFrame) -> Vec<Role> {
    let roles = map.roles(frame);
    let own = |role: &Role| role.site.line.is_some() && !is_c_library(&role.site);
    roles.into_iter().filter(own).collect()
}

/// The roles of a stack, frame by frame. Where no frame has a source line, those
/// of stripped code.
fn roles_of_stack<'a>(
    map: &ModuleMap,
    frames: &'a [StackFrame],
) -> Vec<(&'a StackFrame, Vec<Role>)> {
    let with = |roles: &dyn Fn(&StackFrame) -> Vec<Role>| -> Vec<(&'a StackFrame, Vec<Role>)> {
        let all = frames.iter().map(|frame| (frame, roles(frame)));
        all.filter(|(_, roles)| !roles.is_empty()).collect()
    };
    let lined = with(&|frame| own_roles(map, frame));
    if !lined.is_empty() {
        return lined;
    }
    let stripped = |role: &Role| role.site.module.is_some() && !is_c_library(&role.site);
    with(&|frame| map.roles(frame).into_iter().filter(stripped).collect())
}

impl Roles {
    /// Who chose the object at `object`, of a thread with this stack.
    pub fn chosen(
        &mut self,
        map: &ModuleMap,
        frames: &[StackFrame],
        object: Option<&Range<u64>>,
        read: &mut ReadMemory<'_>,
    ) -> Chosen {
        let mut chosen = Chosen::default();
        let mut last = None;
        for (frame, roles) in roles_of_stack(map, frames) {
            for (role, is_outermost) in marked(roles) {
                let names = is_outermost && self.mentions(map, frame, object, read);
                let is_site = chosen.site.is_none();
                if is_site {
                    chosen.site = Some(role.site);
                } else {
                    last = Some(role.site);
                }
                if !role.general || names {
                    chosen.caller = last;
                    return chosen;
                }
            }
        }
        // Nobody there says: then whoever began it all.
        chosen.caller = last;
        chosen
    }

    /// Who is on the stack decides who chose the object.
    pub fn asks_callers(
        &mut self,
        map: &ModuleMap,
        pc: u64,
        object: Option<&Range<u64>>,
        read: &mut ReadMemory<'_>,
    ) -> bool {
        let frame = StackFrame {
            address: pc,
            is_return_address: false,
            registers: Registers::default(),
        };
        let roles = own_roles(map, &frame);
        let all_general = roles.iter().all(|role| role.general);
        all_general && (roles.is_empty() || !self.mentions(map, &frame, object, read))
    }

    /// The code of the frame's function has the address of the object in it.
    fn mentions(
        &mut self,
        map: &ModuleMap,
        frame: &StackFrame,
        object: Option<&Range<u64>>,
        read: &mut ReadMemory<'_>,
    ) -> bool {
        let (Some(object), Some(function)) = (object, map.function_at(frame.instruction())) else {
            return false;
        };
        *self
            .mentioned
            .entry((function.start, object.start))
            .or_insert_with(|| {
                let size = function.size.min(LARGEST_FUNCTION) as usize;
                let code = map
                    .find(function.start)
                    .and_then(|(module, offset)| module.bytes_at(offset, size));
                code.is_some_and(|code| has_address(code, function.start, object, read))
            })
    }
}

fn marked(roles: Vec<Role>) -> impl Iterator<Item = (Role, bool)> {
    let last = roles.len().saturating_sub(1);
    let mark = move |(index, role)| (role, index == last);
    roles.into_iter().enumerate().map(mark)
}

fn has_address(code: &[u8], start: u64, object: &Range<u64>, read: &mut ReadMemory<'_>) -> bool {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if mentioned_by(&instruction, object, read) {
            return true;
        }
    }
    false
}

fn mentioned_by(instruction: &Instruction, object: &Range<u64>, read: &mut ReadMemory<'_>) -> bool {
    (0..instruction.op_count()).any(|operand| match instruction.op_kind(operand) {
        OpKind::Memory if instruction.memory_base() == Register::RIP => {
            let address = instruction.ip_rel_memory_address();
            // Of a library or position-independent code: by its slot in the
            // table of addresses.
            object.contains(&address) || read(address) == Some(object.start)
        }
        // Of position-dependent code: `table(,%rax,8)`.
        OpKind::Memory => object.contains(&instruction.memory_displacement64()),
        OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64 => {
            object.contains(&instruction.immediate(operand))
        }
        _ => false,
    })
}

/// Who asked for memory: the innermost function that knows what it is for.
pub fn allocated_by(map: &ModuleMap, frames: &[StackFrame]) -> Option<Site> {
    let mut last = None;
    let roles = roles_of_stack(map, frames).into_iter();
    for role in roles.flat_map(|(_, roles)| roles) {
        let knows = !role.allocates;
        last = Some(role.site);
        if knows {
            break;
        }
    }
    last
}
