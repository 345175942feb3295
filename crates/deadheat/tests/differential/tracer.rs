//! Native runs under ptrace: the state at a fault, the state at every step.

use crate::child::{Fault, comparable};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub struct Tracee {
    child: Child,
    pid: i32,
    ended: bool,
}

/// How a traced program stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    Exited(i32),
    Killed(i32),
    Signal(i32),
}

impl Tracee {
    /// Starts `program`, stopped before its first instruction.
    pub fn start(program: &Path) -> Result<Tracee, String> {
        let mut command = Command::new(program);
        command
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: only a system call between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                Ok(())
            });
        }
        let child = command
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let pid = child.id() as i32;
        let mut tracee = Tracee {
            child,
            pid,
            ended: false,
        };
        match tracee.wait() {
            Stopped::Signal(libc::SIGTRAP) => Ok(tracee),
            other => Err(format!("{}: {other:?} at exec", program.display())),
        }
    }

    fn wait(&mut self) -> Stopped {
        let mut status = 0;
        // SAFETY: our own child and an out-parameter.
        unsafe { libc::waitpid(self.pid, &mut status, libc::__WALL) };
        if libc::WIFSTOPPED(status) {
            return Stopped::Signal(libc::WSTOPSIG(status));
        }
        self.ended = true;
        if libc::WIFEXITED(status) {
            Stopped::Exited(libc::WEXITSTATUS(status))
        } else {
            Stopped::Killed(libc::WTERMSIG(status))
        }
    }

    pub fn go(&mut self) -> Stopped {
        // SAFETY: a stopped child of ours.
        unsafe { libc::ptrace(libc::PTRACE_CONT, self.pid, 0, 0) };
        self.wait()
    }

    pub fn step(&mut self) -> Stopped {
        // SAFETY: a stopped child of ours.
        unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.pid, 0, 0) };
        self.wait()
    }

    /// Sixteen general registers in machine order, rip, rflags.
    pub fn registers(&self) -> [u64; 18] {
        // SAFETY: a stopped child of ours and an out-parameter.
        let regs = unsafe {
            let mut regs: libc::user_regs_struct = std::mem::zeroed();
            libc::ptrace(libc::PTRACE_GETREGS, self.pid, 0, &mut regs);
            regs
        };
        [
            regs.rax,
            regs.rcx,
            regs.rdx,
            regs.rbx,
            regs.rsp,
            regs.rbp,
            regs.rsi,
            regs.rdi,
            regs.r8,
            regs.r9,
            regs.r10,
            regs.r11,
            regs.r12,
            regs.r13,
            regs.r14,
            regs.r15,
            regs.rip,
            regs.eflags,
        ]
    }

    pub fn read(&self, address: u64, bytes: &mut [u8]) {
        if let Ok(memory) = File::open(format!("/proc/{}/mem", self.pid)) {
            let _ = memory.read_at(bytes, address);
        }
    }

    /// The state at a stop by `signal`.
    pub fn fault(&self, signal: i32) -> Fault {
        let mut area = vec![0u8; 4096];
        // SAFETY: a stopped child of ours and out-parameters of the sizes
        // given.
        let info = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::ptrace(libc::PTRACE_GETSIGINFO, self.pid, 0, &mut info);
            let mut vector = libc::iovec {
                iov_base: area.as_mut_ptr().cast(),
                iov_len: area.len(),
            };
            const NT_X86_XSTATE: usize = 0x202;
            libc::ptrace(libc::PTRACE_GETREGSET, self.pid, NT_X86_XSTATE, &mut vector);
            info
        };
        // SAFETY: all signals asked about carry an address.
        let address = unsafe { info.si_addr() } as u64;
        Fault {
            signal,
            address,
            count: 0,
            regs: self.registers(),
            vector: comparable(&area),
        }
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.child.kill();
            self.wait();
        }
    }
}
