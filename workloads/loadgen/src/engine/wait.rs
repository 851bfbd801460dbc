//! Waiting for sockets or for a point in time, to the nanosecond where the kernel allows it.

use crate::sys;
use clap::ValueEnum;
use serde::Serialize;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// How the generator waits for its next send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
pub enum Wait {
    /// `epoll_pwait2`, or a timerfd where the kernel lacks it
    #[serde(rename = "auto")]
    Auto,
    /// `epoll_pwait2` (Linux 5.11)
    #[value(name = "epoll_pwait2")]
    #[serde(rename = "epoll_pwait2")]
    Pwait2,
    /// a timerfd beside the sockets
    #[value(name = "timerfd")]
    #[serde(rename = "timerfd")]
    Timer,
    /// never sleeps
    #[serde(rename = "spin")]
    Spin,
}

const BATCH: usize = 256;
/// Token of the poller's own timer.
const TIMER: u64 = u64::MAX;

pub struct Poller {
    epoll: OwnedFd,
    wait: Wait,
    timer: Option<OwnedFd>,
    events: Vec<libc::epoll_event>,
}

/// Something happened to the descriptor registered with the token.
#[derive(Clone, Copy)]
pub struct Event {
    pub token: u64,
    pub writable: bool,
    pub readable: bool,
}

impl Poller {
    pub fn new(asked: Wait) -> Result<Self> {
        let epoll = sys::epoll_create()?;
        let mut poller = Self {
            epoll,
            wait: asked,
            timer: None,
            events: vec![libc::epoll_event { events: 0, u64: 0 }; BATCH],
        };
        if asked == Wait::Auto {
            let missing = sys::epoll_pwait2(&poller.epoll, &mut poller.events, 0)
                .is_err_and(|e| e.raw_os_error() == Some(libc::ENOSYS));
            poller.wait = if missing { Wait::Timer } else { Wait::Pwait2 };
        }
        if poller.wait == Wait::Timer {
            let timer = sys::timer_create()?;
            poller.add(timer.as_raw_fd(), TIMER, false)?;
            poller.timer = Some(timer);
        }
        Ok(poller)
    }

    /// The way of waiting that was found or asked for.
    pub fn wait_mode(&self) -> Wait {
        self.wait
    }

    fn interest(write: bool) -> u32 {
        (libc::EPOLLIN | libc::EPOLLRDHUP | if write { libc::EPOLLOUT } else { 0 }) as u32
    }

    pub fn add(&self, fd: RawFd, token: u64, write: bool) -> Result<()> {
        sys::epoll_change(&self.epoll, libc::EPOLL_CTL_ADD, fd, Self::interest(write), token)
    }

    pub fn change(&self, fd: RawFd, token: u64, write: bool) -> Result<()> {
        sys::epoll_change(&self.epoll, libc::EPOLL_CTL_MOD, fd, Self::interest(write), token)
    }

    /// Waits until something happens or `until_ns` has come, and returns how many events there are.
    pub fn poll(&mut self, until_ns: u64) -> Result<usize> {
        let result = match self.wait {
            Wait::Spin => sys::epoll_wait(&self.epoll, &mut self.events, 0),
            Wait::Timer => match &self.timer {
                Some(timer) => sys::timer_set(timer, until_ns)
                    .and_then(|()| sys::epoll_wait(&self.epoll, &mut self.events, -1)),
                None => Err(Error::from(ErrorKind::NotFound)),
            },
            Wait::Pwait2 | Wait::Auto => {
                let timeout_ns = until_ns.saturating_sub(sys::now_ns());
                sys::epoll_pwait2(&self.epoll, &mut self.events, timeout_ns)
            }
        };
        match result {
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
            other => other,
        }
    }

    /// Event number `i` of the last poll; the poller's own timer is none.
    pub fn event(&self, i: usize) -> Option<Event> {
        let raw = self.events[i];
        let bits = raw.events as i32;
        let token = raw.u64;
        (token != TIMER).then_some(Event {
            token,
            writable: bits & libc::EPOLLOUT != 0,
            readable: bits & !libc::EPOLLOUT != 0,
        })
    }
}
