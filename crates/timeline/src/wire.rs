//! Messages between the process that travels and its worlds: JSON with a
//! length before it, over a socket, with at most one descriptor beside it.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// No message is longer; a larger length is damage.
const LONGEST: u32 = 256 << 20;

pub fn send(stream: &mut UnixStream, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&text);
    stream.write_all(&bytes)
}

pub fn receive<T: DeserializeOwned>(stream: &mut UnixStream) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; length as usize];
    stream.read_exact(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Room for the header and one descriptor, aligned as the kernel wants it.
type Control = [u64; 4];

/// Sends a descriptor, with one byte to carry it.
pub fn send_descriptor(stream: &UnixStream, descriptor: RawFd) -> io::Result<()> {
    let mut byte = [0u8; 1];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut control: Control = [0; 4];
    // SAFETY: all pointers in the header lead to locals that outlive the call;
    // the control buffer has room for one header and one descriptor.
    let sent = unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as usize;
        let first = libc::CMSG_FIRSTHDR(&header);
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_RIGHTS;
        (*first).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        libc::CMSG_DATA(first)
            .cast::<RawFd>()
            .write_unaligned(descriptor);
        libc::sendmsg(stream.as_raw_fd(), &header, libc::MSG_NOSIGNAL)
    };
    if sent == 1 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

pub fn receive_descriptor(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0u8; 1];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut control: Control = [0; 4];
    // SAFETY: as in `send_descriptor`; a descriptor that the kernel says it
    // has put into the buffer is ours.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of::<Control>();
        let got = libc::recvmsg(stream.as_raw_fd(), &mut header, libc::MSG_CMSG_CLOEXEC);
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        let first = libc::CMSG_FIRSTHDR(&header);
        if got == 0 || first.is_null() || (*first).cmsg_type != libc::SCM_RIGHTS {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let descriptor = libc::CMSG_DATA(first).cast::<RawFd>().read_unaligned();
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_descriptors_arrive() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        send(&mut one, &("tick", 7u64)).unwrap();
        let got: (String, u64) = receive(&mut other).unwrap();
        assert_eq!(got, ("tick".to_string(), 7));
        let (mine, sent) = UnixStream::pair().unwrap();
        send_descriptor(&one, sent.as_raw_fd()).unwrap();
        let mut arrived = UnixStream::from(receive_descriptor(&other).unwrap());
        drop(sent);
        (&mine).write_all(b"x").unwrap();
        let mut byte = [0];
        arrived.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
    }
}
