//! Work in processes of its own, as many at once as there are processors.
//!
//! A vm has fixed addresses, so every run needs a process; and a process that
//! forks must have one host thread, so the runs are waited for with `poll`
//! rather than by threads. Each process leads a group of its own: Ctrl-C at the
//! terminal is for the hunt, not for the program under test, and one kill ends
//! a run together with whatever it has started.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, Read, Write};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::{Duration, Instant};
use vm::interruption;

/// Descriptors of the pool lie from here on, out of the program's way.
const HIGH: i32 = 900;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lost {
    /// It took longer than it was given.
    TimedOut,
    /// It failed, or its process ended without an answer.
    Failed(String),
    /// The work was over before it was done (`vm::interruption`).
    Interrupted,
}

struct Task {
    id: u64,
    pid: i32,
    answer: File,
    text: Vec<u8>,
    deadline: Instant,
}

pub struct Pool<T> {
    tasks: Vec<Task>,
    _answer: PhantomData<T>,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Pool {
            tasks: Vec::new(),
            _answer: PhantomData,
        }
    }
}

impl<T: Serialize + DeserializeOwned> Pool<T> {
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Runs `work` in a process of its own, for at most `patience`.
    pub fn start(
        &mut self,
        id: u64,
        patience: Duration,
        work: impl FnOnce() -> Result<T, String>,
    ) -> io::Result<()> {
        let mut ends = [0; 2];
        // SAFETY: plain out-parameter.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both ends were just made and belong to nobody else.
        let (answer, reply) = unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
        // SAFETY: there are no other host threads; the child runs `work` and
        // leaves by `_exit`.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(answer);
                self.tasks.drain(..).for_each(|task| drop(task.answer));
                // SAFETY: no preconditions; a group of its own, which ends with
                // the hunt.
                unsafe {
                    libc::setpgid(0, 0);
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::signal(libc::SIGINT, libc::SIG_DFL);
                    libc::signal(libc::SIGTERM, libc::SIG_DFL);
                }
                let mut reply = high(reply);
                let sent = serde_json::to_vec(&work())
                    .map_err(io::Error::from)
                    .and_then(|text| reply.write_all(&text));
                // SAFETY: ends the child without the parent's exit handlers.
                unsafe { libc::_exit(i32::from(sent.is_err())) }
            }
            pid => {
                drop(reply);
                // SAFETY: no preconditions. Both sides do it, so that it is
                // done whoever comes first.
                unsafe { libc::setpgid(pid, pid) };
                self.tasks.push(Task {
                    id,
                    pid,
                    answer: high(answer),
                    text: Vec::new(),
                    deadline: Instant::now() + patience,
                });
                Ok(())
            }
        }
    }

    /// Waits for the next answer, for a while; when the work is over all that
    /// is under way is ended.
    pub fn wait(&mut self) -> Option<(u64, Result<T, Lost>)> {
        if interruption::is_over() {
            let task = self.tasks.pop()?;
            let id = task.id;
            end(task);
            return Some((id, Err(Lost::Interrupted)));
        }
        let now = Instant::now();
        if let Some(late) = self.tasks.iter().position(|task| task.deadline <= now) {
            let task = self.tasks.swap_remove(late);
            let id = task.id;
            end(task);
            return Some((id, Err(Lost::TimedOut)));
        }
        let next = self.tasks.iter().map(|task| task.deadline).min()?;
        let mut polled: Vec<libc::pollfd> = self
            .tasks
            .iter()
            .map(|task| libc::pollfd {
                fd: task.answer.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        let timeout = (next - now).as_millis().min(100) as i32 + 1;
        // SAFETY: the list lives through the call.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout) };
        let ready = polled.iter().position(|entry| entry.revents != 0)?;
        let task = &mut self.tasks[ready];
        let mut part = [0; 65536];
        match task.answer.read(&mut part) {
            Ok(0) => {}
            Ok(length) => {
                task.text.extend_from_slice(&part[..length]);
                return None;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return None,
            Err(_) => {}
        }
        let task = self.tasks.swap_remove(ready);
        let id = task.id;
        let answer = serde_json::from_slice::<Result<T, String>>(&task.text);
        let how = end(task);
        Some((
            id,
            match answer {
                Ok(Ok(answer)) => Ok(answer),
                Ok(Err(why)) => Err(Lost::Failed(why)),
                Err(_) => Err(Lost::Failed(format!(
                    "the process of a run ended without an answer ({how})"
                ))),
            },
        ))
    }

    /// Ends all that is under way.
    pub fn clear(&mut self) {
        for task in self.tasks.drain(..) {
            end(task);
        }
    }
}

impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        for task in self.tasks.drain(..) {
            end(task);
        }
    }
}

/// Ends a process and its group; how it had ended.
fn end(task: Task) -> String {
    let mut status = 0;
    // SAFETY: our own child, not reaped yet, and the group that it leads;
    // `status` is a plain out-parameter.
    unsafe {
        libc::kill(-task.pid, libc::SIGKILL);
        libc::kill(task.pid, libc::SIGKILL);
        while libc::waitpid(task.pid, &mut status, 0) < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
    if libc::WIFSIGNALED(status) {
        format!("signal {}", libc::WTERMSIG(status))
    } else {
        format!("exit code {}", libc::WEXITSTATUS(status))
    }
}

/// The guest must not find a descriptor of ours among its own.
fn high(file: File) -> File {
    // SAFETY: duplicates a descriptor that we own; the new one is ours.
    unsafe {
        let fd = libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, HIGH);
        if fd < 0 { file } else { File::from_raw_fd(fd) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test: forks of a process with several threads are asking for it.
    #[test]
    fn answers_come_back_and_the_late_are_ended() {
        let mut pool = Pool::<u32>::default();
        let long = Duration::from_secs(60);
        pool.start(1, long, || Ok(17)).unwrap();
        pool.start(2, long, || Err("no".into())).unwrap();
        pool.start(3, Duration::from_millis(1), || {
            loop {
                // SAFETY: no preconditions.
                unsafe { libc::pause() };
            }
        })
        .unwrap();
        let mut answers = Vec::new();
        while !pool.is_empty() {
            answers.extend(pool.wait());
        }
        answers.sort_by_key(|(id, _)| *id);
        assert_eq!(
            answers,
            [
                (1, Ok(17)),
                (2, Err(Lost::Failed("no".into()))),
                (3, Err(Lost::TimedOut)),
            ]
        );
    }
}
