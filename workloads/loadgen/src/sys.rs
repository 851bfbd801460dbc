//! The few kernel calls that the standard library does not wrap. All unsafe code of the program is here.

use std::io::{Error, Result};
use std::mem::{size_of, zeroed};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fn checked(result: i32) -> Result<i32> {
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn owned(result: i32) -> Result<OwnedFd> {
    // SAFETY: a descriptor that the kernel has just returned belongs to nobody else.
    checked(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    // SAFETY: `time` is valid for writing; these clocks always exist.
    let time = unsafe {
        let mut time: libc::timespec = zeroed();
        libc::clock_gettime(clock, &raw mut time);
        time
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// `CLOCK_MONOTONIC` in ns.
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// `CLOCK_REALTIME` in ns.
pub fn wall_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME)
}

/// Asks for timers as exact as the kernel can; refusal only costs precision.
pub fn least_timer_slack() {
    // SAFETY: takes integers only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
}

/// User and system time of this process so far, in ns.
pub fn cpu_times_ns() -> (u64, u64) {
    // SAFETY: `usage` is valid for writing.
    let usage = unsafe {
        let mut usage: libc::rusage = zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let ns = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1_000;
    (ns(usage.ru_utime), ns(usage.ru_stime))
}

/// SIGINT and SIGTERM as something to wait for beside the sockets.
pub fn termination_signals() -> Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before use.
    unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        checked(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()))?;
        owned(libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC))
    }
}

pub fn epoll_create() -> Result<OwnedFd> {
    // SAFETY: takes integers only.
    unsafe { owned(libc::epoll_create1(libc::EPOLL_CLOEXEC)) }
}

/// `operation` is one of `EPOLL_CTL_ADD`, `_MOD`, `_DEL`.
pub fn epoll_change(epoll: &OwnedFd, operation: i32, fd: RawFd, events: u32, token: u64) -> Result<()> {
    let mut event = libc::epoll_event { events, u64: token };
    // SAFETY: `event` lives through the call.
    checked(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, fd, &raw mut event) }).map(|_| ())
}

/// Waits for events, at most `timeout_ns`; `ENOSYS` before Linux 5.11.
pub fn epoll_pwait2(epoll: &OwnedFd, events: &mut [libc::epoll_event], timeout_ns: u64) -> Result<usize> {
    let timeout = timespec(timeout_ns);
    // SAFETY: `events` is valid for writing as many entries as its length says; no signal mask is given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll.as_raw_fd(),
            events.as_mut_ptr(),
            events.len() as i32,
            &raw const timeout,
            std::ptr::null::<libc::sigset_t>(),
            0usize,
        )
    };
    checked(result as i32).map(|n| n as usize)
}

/// Waits for events; -1 ms is for ever.
pub fn epoll_wait(epoll: &OwnedFd, events: &mut [libc::epoll_event], timeout_ms: i32) -> Result<usize> {
    // SAFETY: as above.
    let result =
        unsafe { libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, timeout_ms) };
    checked(result).map(|n| n as usize)
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

pub fn timer_create() -> Result<OwnedFd> {
    // SAFETY: takes integers only.
    unsafe { owned(libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC)) }
}

/// Sets the timer to an absolute time; one that has passed fires at once.
pub fn timer_set(timer: &OwnedFd, at_ns: u64) -> Result<()> {
    let value = libc::itimerspec { it_interval: timespec(0), it_value: timespec(at_ns.max(1)) };
    // SAFETY: `value` lives through the call.
    let result = unsafe {
        libc::timerfd_settime(
            timer.as_raw_fd(),
            libc::TFD_TIMER_ABSTIME,
            &raw const value,
            std::ptr::null_mut(),
        )
    };
    checked(result).map(|_| ())
}

/// A non-blocking socket of the family, and of the type (`SOCK_STREAM`, `SOCK_SEQPACKET`).
fn socket(family: i32, kind: i32) -> Result<OwnedFd> {
    // SAFETY: takes integers only.
    unsafe { owned(libc::socket(family, kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0)) }
}

/// Starts a connection; true if it is there already, false if it is on its way.
fn connect<T>(fd: &OwnedFd, address: &T, length: usize) -> Result<bool> {
    // SAFETY: `address` is a socket address of at least `length` bytes.
    let result = unsafe {
        libc::connect(fd.as_raw_fd(), std::ptr::from_ref(address).cast(), length as libc::socklen_t)
    };
    match checked(result) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(false),
        Err(error) => Err(error),
    }
}

pub fn connect_tcp(address: &SocketAddr) -> Result<(OwnedFd, bool)> {
    match address {
        SocketAddr::V4(v4) => {
            let fd = socket(libc::AF_INET, libc::SOCK_STREAM)?;
            no_delay(&fd);
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            let there = connect(&fd, &raw, size_of::<libc::sockaddr_in>())?;
            Ok((fd, there))
        }
        SocketAddr::V6(v6) => {
            let fd = socket(libc::AF_INET6, libc::SOCK_STREAM)?;
            no_delay(&fd);
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            let there = connect(&fd, &raw, size_of::<libc::sockaddr_in6>())?;
            Ok((fd, there))
        }
    }
}

/// Connects to a Unix socket; one whose queue is full gives `WouldBlock`.
pub fn connect_unix(path: &Path, kind: i32) -> Result<OwnedFd> {
    // SAFETY: all zeros is a valid sockaddr_un.
    let mut raw: libc::sockaddr_un = unsafe { zeroed() };
    raw.sun_family = libc::AF_UNIX as u16;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= raw.sun_path.len() {
        return Err(Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, from) in raw.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let fd = socket(libc::AF_UNIX, kind)?;
    connect(&fd, &raw, size_of::<libc::sockaddr_un>())?;
    Ok(fd)
}

/// Refusal (not a TCP socket) only costs latency.
fn no_delay(fd: &OwnedFd) {
    let on: i32 = 1;
    // SAFETY: `on` lives through the call and its size is given.
    unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NODELAY,
            std::ptr::from_ref(&on).cast(),
            size_of::<i32>() as libc::socklen_t,
        );
    }
}

/// How the last connection attempt on the socket ended.
pub fn connect_result(fd: &OwnedFd) -> Result<()> {
    let mut error: i32 = 0;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: both out parameters are valid for writing.
    checked(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            std::ptr::from_mut(&mut error).cast(),
            &raw mut length,
        )
    })?;
    if error == 0 {
        Ok(())
    } else {
        Err(Error::from_raw_os_error(error))
    }
}

/// Sends without blocking and without SIGPIPE.
pub fn send(fd: &OwnedFd, bytes: &[u8]) -> Result<usize> {
    // SAFETY: `bytes` is valid for reading over its length.
    let result = unsafe {
        libc::send(
            fd.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(result as usize)
    }
}

/// Receives without blocking; 0 is the end of the stream.
pub fn receive(fd: &OwnedFd, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: `buffer` is valid for writing over its length.
    let result =
        unsafe { libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(result as usize)
    }
}

/// Reads from a descriptor that is no socket.
pub fn read(fd: &OwnedFd, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: `buffer` is valid for writing over its length.
    let result = unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(result as usize)
    }
}
