//! The line to gdb: a socket, or standard input and output.

use gdbstub::conn::Connection;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

/// gdb's interrupt, sent outside of any packet.
const INTERRUPT: u8 = 3;

pub struct Line {
    from: File,
    to: File,
    /// Received and not yet taken.
    received: Vec<u8>,
    taken: usize,
    waiting: Vec<u8>,
}

impl Line {
    fn new(from: OwnedFd, to: OwnedFd) -> Self {
        Line {
            from: from.into(),
            to: to.into(),
            received: Vec::new(),
            taken: 0,
            waiting: Vec::new(),
        }
    }

    /// The next byte; none when gdb has gone.
    pub fn read(&mut self) -> io::Result<Option<u8>> {
        if self.taken == self.received.len() && !self.receive()? {
            return Ok(None);
        }
        self.taken += 1;
        Ok(Some(self.received[self.taken - 1]))
    }

    fn receive(&mut self) -> io::Result<bool> {
        self.received.resize(4096, 0);
        self.taken = 0;
        let length = loop {
            match self.from.read(&mut self.received) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break 0,
                other => break other?,
            }
        };
        self.received.truncate(length);
        Ok(length > 0)
    }

    /// gdb wants a running execution to stop, or has gone.
    pub fn is_interrupted(&mut self) -> bool {
        if self.taken == self.received.len() {
            let mut poll = libc::pollfd {
                fd: self.from.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one valid entry, no waiting.
            if unsafe { libc::poll(&mut poll, 1, 0) } != 1 {
                return false;
            }
            if !self.receive().unwrap_or(false) {
                return true;
            }
        }
        if self.received[self.taken] == INTERRUPT {
            self.taken += 1;
            return true;
        }
        false
    }
}

impl Connection for Line {
    type Error = io::Error;

    fn write(&mut self, byte: u8) -> io::Result<()> {
        self.waiting.push(byte);
        Ok(())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.waiting.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.to.write_all(&self.waiting);
        self.waiting.clear();
        result
    }
}

/// Where gdb is waited for.
pub enum Door {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
    /// Standard input and output; for one conversation.
    Pipe(bool),
}

impl Door {
    /// `-`, `HOST:PORT`, `:PORT` (this machine only) or the path of a socket.
    pub fn open(address: &str) -> io::Result<Door> {
        if address == "-" {
            return Ok(Door::Pipe(true));
        }
        let port = address.rsplit_once(':').map(|(_, port)| port);
        if port.is_some_and(|port| port.parse::<u16>().is_ok()) {
            let full = match address.strip_prefix(':') {
                Some(port) => format!("127.0.0.1:{port}"),
                None => address.to_string(),
            };
            return TcpListener::bind(full).map(Door::Tcp);
        }
        let path = PathBuf::from(address);
        UnixListener::bind(&path).map(|listener| Door::Unix(listener, path))
    }

    /// What gdb's `target remote` wants to hear.
    pub fn name(&self) -> String {
        match self {
            Door::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|_| "?".into(), |address| address.to_string()),
            Door::Unix(_, path) => path.display().to_string(),
            Door::Pipe(_) => "standard input".into(),
        }
    }

    /// The next conversation; none if there can be no more.
    pub fn wait(&mut self) -> io::Result<Option<Line>> {
        match self {
            Door::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(Some(from_tcp(stream)?))
            }
            Door::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                Ok(Some(from_unix(stream)?))
            }
            Door::Pipe(fresh) if *fresh => {
                *fresh = false;
                use std::os::fd::AsFd;
                let from = io::stdin().as_fd().try_clone_to_owned()?;
                let to = io::stdout().as_fd().try_clone_to_owned()?;
                Ok(Some(Line::new(from, to)))
            }
            Door::Pipe(_) => Ok(None),
        }
    }
}

fn from_tcp(stream: TcpStream) -> io::Result<Line> {
    Ok(Line::new(stream.try_clone()?.into(), stream.into()))
}

fn from_unix(stream: UnixStream) -> io::Result<Line> {
    Ok(Line::new(stream.try_clone()?.into(), stream.into()))
}

impl Drop for Door {
    fn drop(&mut self) {
        if let Door::Unix(_, path) = self {
            // Another run finds the name free.
            let _ = std::fs::remove_file(path);
        }
    }
}
