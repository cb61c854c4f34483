//! The ceiling for plain TCP: a bare scatter/gather copy between two regions over loopback.
//!
//! One thread at each end of each stream, blocking calls, up to 1024 blocks a call, `reno`, timed until the target's
//! acknowledgement.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use super::{Bare, Plan};
use crate::memory::{Kind, Memory};
use crate::node::content;
use crate::shape::Shape;

const VECTORS_PER_CALL: usize = 1024;
const BYTES_PER_CALL: usize = 1 << 20;

/// Two regions of one process and the connections between them.
pub struct Streams {
    block_len: usize,
    _source: Memory,
    target: Memory,
    /// Addresses of the blocks, scattered, in the order in which they are moved.
    from: Vec<usize>,
    to: Vec<usize>,
    pairs: Vec<(TcpStream, TcpStream)>,
}

impl Streams {
    pub fn new(shape: Shape, plan: &Plan, streams: usize) -> Streams {
        let memory = || Memory::new(Kind::Private, shape.block_len, shape.blocks, content);
        let (source, target) = (memory(), memory());
        let addresses = |memory: &Memory, blocks: &[usize]| -> Vec<usize> {
            let base = memory.start().expose_provenance();
            blocks.iter().map(|block| base + block * shape.block_len).collect()
        };
        let (from, to) = (addresses(&source, &plan.from), addresses(&target, &plan.to));
        let pairs = (0..streams).map(|_| connected_pair().unwrap()).collect();
        Streams { block_len: shape.block_len, _source: source, target, from, to, pairs }
    }
}

impl Bare for Streams {
    fn run(&mut self) -> Duration {
        let share = self.from.len().div_ceil(self.pairs.len());
        let shares = self.from.chunks(share).zip(self.to.chunks(share));
        let block_len = self.block_len;
        thread::scope(|scope| {
            let mut senders = Vec::new();
            let mut starts = Vec::new();
            for ((sender, receiver), (from, to)) in self.pairs.iter().zip(shares) {
                scope.spawn(move || {
                    move_blocks(to, block_len, |vectors| receive(receiver, vectors)).unwrap();
                    (&*receiver).write_all(&[1]).unwrap();
                });
                let (start, started) = std::sync::mpsc::channel::<()>();
                starts.push(start);
                senders.push(scope.spawn(move || {
                    started.recv().unwrap();
                    move_blocks(from, block_len, |vectors| send(sender, vectors)).unwrap();
                    (&*sender).read_exact(&mut [0]).unwrap();
                }));
            }
            let begin = Instant::now();
            starts.iter().for_each(|start| start.send(()).unwrap());
            senders.into_iter().for_each(|sender| sender.join().unwrap());
            begin.elapsed()
        })
    }

    fn target(&mut self) -> &mut Memory {
        &mut self.target
    }
}

fn connected_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let sender = TcpStream::connect(listener.local_addr()?)?;
    socket2::SockRef::from(&sender).set_tcp_congestion(b"reno")?;
    sender.set_nodelay(true)?;
    Ok((sender, listener.accept()?.0))
}

/// Calls `transfer` with vectors over what is left of `blocks` until nothing is.
fn move_blocks(
    blocks: &[usize],
    block_len: usize,
    transfer: impl Fn(&mut [libc::iovec]) -> io::Result<usize>,
) -> io::Result<()> {
    let mut vectors: Vec<libc::iovec> = Vec::with_capacity(VECTORS_PER_CALL);
    let (mut block, mut offset) = (0, 0);
    while block < blocks.len() {
        vectors.clear();
        let mut bytes = 0;
        let mut skip = offset;
        for address in blocks[block..].iter().take(VECTORS_PER_CALL) {
            vectors.push(libc::iovec {
                iov_base: (address + skip) as *mut libc::c_void,
                iov_len: block_len - skip,
            });
            bytes += block_len - skip;
            skip = 0;
            if bytes >= BYTES_PER_CALL {
                break;
            }
        }
        let moved = offset + transfer(&mut vectors)?;
        block += moved / block_len;
        offset = moved % block_len;
    }
    Ok(())
}

fn message(vectors: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: a msghdr of zeros is valid: no address, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len() as _;
    message
}

fn send(stream: &TcpStream, vectors: &mut [libc::iovec]) -> io::Result<usize> {
    // SAFETY: the vectors lie in the source region, which outlives the threads.
    let sent = unsafe { libc::sendmsg(stream.as_raw_fd(), &message(vectors), libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

fn receive(stream: &TcpStream, vectors: &mut [libc::iovec]) -> io::Result<usize> {
    // SAFETY: the vectors lie in the target region, which outlives the threads; each block is in one list only.
    let got = unsafe { libc::recvmsg(stream.as_raw_fd(), &mut message(vectors), 0) };
    match usize::try_from(got) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(got) => Ok(got),
        Err(_) => Err(io::Error::last_os_error()),
    }
}
