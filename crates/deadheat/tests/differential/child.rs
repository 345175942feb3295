//! A vm in a process of its own: this program, started again. One vm per
//! process, because it maps fixed addresses.

use race::Moment;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use vm::observe::{AccessEvent, Interest, Observer};
use vm::record::ProcessStatus;
use vm::vector::component;
use vm::{ScheduleChoice, Stop, Vm};

/// First argument of the child.
pub const CHILD: &str = "vm-child";

/// What the child does with the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drive {
    /// Watch every access.
    pub observe: bool,
    /// Come back after this many instructions, again and again.
    pub step: Option<u64>,
    /// Make traces at once, looking this often.
    pub eager: Option<u64>,
    /// Write the registers at every stop and every access seen.
    pub trace: bool,
    pub seed: u64,
}

impl Drive {
    /// The command that runs `program` so and writes `report`.
    pub fn command(&self, program: &Path, report: &Path) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("we are running"));
        command.arg(CHILD).arg(program).arg(report);
        for (set, name) in [(self.observe, "observe"), (self.trace, "trace")] {
            if set {
                command.arg(name);
            }
        }
        for (value, name) in [
            (self.step, "step"),
            (self.eager, "eager"),
            (Some(self.seed), "seed"),
        ] {
            if let Some(value) = value {
                command.arg(format!("{name}={value}"));
            }
        }
        command
    }

    fn parse(words: &[String]) -> Self {
        let value = |name: &str| {
            words
                .iter()
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        };
        let has = |name: &str| words.iter().any(|word| word == name);
        Drive {
            observe: has("observe"),
            trace: has("trace"),
            step: value("step"),
            eager: value("eager"),
            seed: value("seed").unwrap_or(0),
        }
    }
}

/// Keeps every access.
struct Watcher(std::rc::Rc<std::cell::RefCell<Vec<AccessEvent>>>);

impl Observer for Watcher {
    fn interest(&self) -> Interest {
        Interest {
            accesses: true,
            ..Interest::default()
        }
    }
    fn accesses(&mut self, batch: &[AccessEvent]) {
        self.0.borrow_mut().extend_from_slice(batch);
    }
    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }
}

/// What the child wrote.
#[derive(Debug, Default)]
pub struct Report {
    pub status: String,
    pub instructions: u64,
    pub hash: String,
    pub fault: Option<Fault>,
    /// Registers (sixteen general, rip, rflags) before every instruction.
    pub states: Vec<[u64; 18]>,
    /// (count, pc, address, size, read | write << 1)
    pub accesses: Vec<[u64; 5]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub signal: i32,
    pub address: u64,
    /// Instructions retired before.
    pub count: u64,
    /// Sixteen general registers, rip, rflags.
    pub regs: [u64; 18],
    /// The XSAVE area with what cannot be compared zeroed.
    pub vector: Vec<u8>,
}

fn registers(regs: &vm::context::Registers) -> [u64; 18] {
    let mut all = [0; 18];
    all[..16].copy_from_slice(&regs.gpr);
    all[16] = regs.rip;
    all[17] = regs.rflags;
    all
}

/// The parts of an XSAVE area that mean something: x87 pointers, unused
/// components and the header zeroed.
pub fn comparable(area: &[u8]) -> Vec<u8> {
    let mut area = area[..area.len().min(2688)].to_vec();
    area.resize(2688, 0);
    let in_use = area[512] as u64;
    if in_use & 1 == 0 {
        area[0..32].fill(0);
        area[32..160].fill(0);
    }
    for (component, range) in [
        (1, 160..416),
        (2, component(2)),
        (5, component(5)),
        (6, component(6)),
        (7, component(7)),
    ] {
        if in_use & (1 << component) == 0 {
            area[range].fill(0);
        }
    }
    for (range, _) in [
        (6..24, "FOP, FIP, FDP"),
        (28..32, "MXCSR_MASK"),
        (416..576, ""),
    ] {
        area[range].fill(0);
    }
    // Reserved bytes of the x87 registers, and what lies between and behind the
    // components.
    for register in area[32..160].chunks_exact_mut(16) {
        register[10..].fill(0);
    }
    area[component(2).end..component(5).start].fill(0);
    area[component(7).end..].fill(0);
    area
}

/// The child's own main.
pub fn main(arguments: &[String]) -> Result<(), String> {
    let [program, report, words @ ..] = arguments else {
        return Err("a child needs a program and a report".into());
    };
    let drive = Drive::parse(words);
    let path = PathBuf::from(program);
    let program = vm::Program {
        arguments: vec![path.as_os_str().as_bytes().to_vec()],
        environment: Vec::new(),
        path,
    };
    let schedule = ScheduleChoice {
        seed: drive.seed,
        ..ScheduleChoice::default()
    };
    let mut vm = Vm::live(&program, schedule).map_err(|error| error.to_string())?;
    if let Some(every) = drive.eager {
        vm.trace_eagerly(every);
    }
    let seen = std::rc::Rc::default();
    if drive.observe {
        vm.observe(Box::new(Watcher(std::rc::Rc::clone(&seen))));
    }
    let mut text = String::new();
    let mut next = 0;
    let status = loop {
        if drive.trace
            && let Some(regs) = vm.registers(1)
        {
            let _ = write!(text, "state");
            for value in registers(&regs) {
                let _ = write!(text, " {value:x}");
            }
            text.push('\n');
        }
        let until = drive.step.map(|step| {
            next += step;
            Moment::new(1, next)
        });
        match vm.run(until).map_err(|error| error.to_string())? {
            Stop::Ended(status) => break status,
            Stop::Reached(_) => {}
            other => return Err(format!("a live run cannot stop like this: {other:?}")),
        }
    };
    let status = match status {
        ProcessStatus::Exited(code) => format!("exited {code}"),
        ProcessStatus::Killed(signal) => format!("killed {signal}"),
    };
    let _ = writeln!(text, "status {status}");
    let _ = writeln!(text, "instructions {}", vm.instructions());
    let _ = writeln!(text, "hash {:016x}", vm.state_hash());
    if let Some(fault) = vm.fault {
        let _ = write!(text, "fault {} {:x}", fault.signal, fault.address);
        let _ = write!(text, " {}", fault.moment.count);
        for value in registers(&fault.regs) {
            let _ = write!(text, " {value:x}");
        }
        text.push('\n');
        if let Some(thread) = vm.threads.get(&fault.moment.thread) {
            let _ = write!(text, "vector ");
            for byte in comparable(&thread.vector.bytes) {
                let _ = write!(text, "{byte:02x}");
            }
            text.push('\n');
        }
    }
    if drive.trace {
        vm.take_observers();
        for access in seen.borrow().iter() {
            let _ = writeln!(
                text,
                "access {} {:x} {:x} {} {}",
                access.moment.count,
                access.pc,
                access.address,
                access.size,
                u8::from(access.read) | u8::from(access.write) << 1
            );
        }
    }
    std::fs::write(report, text).map_err(|error| error.to_string())
}

impl Report {
    pub fn read(path: &Path) -> Option<Report> {
        let text = std::fs::read_to_string(path).ok()?;
        let mut report = Report::default();
        for line in text.lines() {
            let (name, rest) = line.split_once(' ')?;
            let hex = |text: &str| u64::from_str_radix(text, 16).ok();
            match name {
                "status" => report.status = rest.to_string(),
                "instructions" => report.instructions = rest.parse().ok()?,
                "hash" => report.hash = rest.to_string(),
                "state" => {
                    let values: Option<Vec<u64>> = rest.split(' ').map(hex).collect();
                    report.states.push(values?.try_into().ok()?);
                }
                "access" => {
                    let mut words = rest.split(' ');
                    report.accesses.push([
                        words.next()?.parse().ok()?,
                        hex(words.next()?)?,
                        hex(words.next()?)?,
                        words.next()?.parse().ok()?,
                        words.next()?.parse().ok()?,
                    ]);
                }
                "fault" => {
                    let mut words = rest.split(' ');
                    let signal = words.next()?.parse().ok()?;
                    let address = hex(words.next()?)?;
                    let count = words.next()?.parse().ok()?;
                    let regs: Option<Vec<u64>> = words.map(hex).collect();
                    report.fault = Some(Fault {
                        signal,
                        address,
                        count,
                        regs: regs?.try_into().ok()?,
                        vector: Vec::new(),
                    });
                }
                "vector" => {
                    let bytes = (0..rest.len() / 2)
                        .map(|at| u8::from_str_radix(&rest[2 * at..2 * at + 2], 16));
                    report.fault.as_mut()?.vector = bytes.collect::<Result<_, _>>().ok()?;
                }
                _ => return None,
            }
        }
        Some(report)
    }
}
