//! The Unix socket beside a data port: abstract, so that a killed process leaves nothing behind, and one network
//! namespace sees only its own.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use socket2::{Domain, SockAddr, Socket, Type};

/// More than a writer ever sends; what is not looked for is closed.
const DESCRIPTORS: usize = 4;

/// The socket that belongs to a data port, by name.
pub fn address(port: u16) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0p2pkv-data-{port}"))
}

pub fn listen(port: u16, backlog: i32) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address(port)?)?;
    socket.listen(backlog)?;
    Ok(socket)
}

pub fn connect(port: u16) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&address(port)?)?;
    Ok(socket)
}

/// Whether the process at the other end runs as our own user: any other may have taken the name.
pub fn is_own_user(socket: &impl AsFd) -> bool {
    socket_peercred(socket).is_ok_and(|theirs| theirs.uid == rustix::process::geteuid())
}

/// The other end has closed, or its process is gone, whatever may still be read.
pub fn is_hung_up(socket: &impl AsFd) -> bool {
    let mut watched = [PollFd::new(socket, PollFlags::RDHUP)];
    poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) != Ok(0)
}

/// Sends all of a short message, with a descriptor beside it.
pub fn send_with(socket: &impl AsFd, message: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|file| [file]);
    if let Some(files) = &files {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    let sent = sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == message.len() {
        Ok(())
    } else {
        Err(io::Error::other("the socket took only part of the hello"))
    }
}

/// Reads into `buffer`; a descriptor that comes along is put into `file`.
pub fn receive(socket: &impl AsFd, buffer: &mut [u8], file: &mut Option<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            // The first; the others are closed as they are dropped.
            for sent in files {
                file.get_or_insert(sent);
            }
        }
    }
    Ok(received.bytes)
}
