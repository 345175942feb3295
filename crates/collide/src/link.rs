//! One end of the socket between front end and holder: whole messages in and
//! out, never blocking on input.

use crate::wire::Message;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

/// No message is longer: a catch carries some stacks of 64 KiB.
const LONGEST: usize = 64 << 20;

pub struct Link {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    ended: bool,
}

impl Link {
    pub fn pair() -> io::Result<(Link, Link)> {
        let (one, other) = UnixStream::pair()?;
        for stream in [&one, &other] {
            stream.set_nonblocking(true)?;
        }
        let link = |stream| Link {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            ended: false,
        };
        Ok((link(one), link(other)))
    }

    pub fn descriptor(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Queues a message and sends as much as the socket takes.
    pub fn send(&mut self, message: &impl Message) {
        let body = message.encode();
        self.output
            .extend_from_slice(&(body.len() as u32).to_le_bytes());
        self.output.extend_from_slice(&body);
        self.flush();
    }

    /// Sends what is queued; true if nothing is left.
    pub fn flush(&mut self) -> bool {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => break,
                Ok(sent) => {
                    self.output.drain(..sent);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => {
                    // The other side is gone; its end of file is noticed on
                    // the way in.
                    self.output.clear();
                    self.ended = true;
                }
            }
        }
        true
    }

    /// Every complete message that has arrived.
    pub fn receive<M: Message>(&mut self) -> io::Result<Vec<M>> {
        let mut chunk = [0; 65536];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    self.ended = true;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        let mut messages = Vec::new();
        let mut at = 0;
        while let Some(head) = self.input.get(at..at + 4) {
            let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
            if length > LONGEST {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "message of impossible length between front end and holder",
                ));
            }
            let Some(body) = self.input.get(at + 4..at + 4 + length) else {
                break;
            };
            messages.push(M::decode(body)?);
            at += 4 + length;
        }
        self.input.drain(..at);
        Ok(messages)
    }

    /// The other side has closed its end or died.
    pub fn ended(&self) -> bool {
        self.ended
    }
}
