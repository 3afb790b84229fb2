//! The descriptors that wake the launcher.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{Timespec, epoll};

/// The maximum number of events per wait. The next wait returns the others.
const MAX_EVENTS_PER_WAIT: usize = 64;

/// The owner of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    Requests,
    Jail(u64),
    Worker(u64),
    Zygote(u64),
    ZygoteEnd(u64),
    ForkServer,
}

impl Token {
    const TOKEN_KINDS: u64 = 6;

    fn number(self) -> u64 {
        let (kind, id) = match self {
            Self::Requests => (0, 0),
            Self::Jail(id) => (1, id),
            Self::Worker(id) => (2, id),
            Self::Zygote(id) => (3, id),
            Self::ZygoteEnd(id) => (4, id),
            Self::ForkServer => (5, 0),
        };
        id.wrapping_mul(Self::TOKEN_KINDS) + kind
    }

    fn of(number: u64) -> Self {
        let id = number / Self::TOKEN_KINDS;
        match number % Self::TOKEN_KINDS {
            0 => Self::Requests,
            1 => Self::Jail(id),
            2 => Self::Worker(id),
            3 => Self::Zygote(id),
            4 => Self::ZygoteEnd(id),
            _ => Self::ForkServer,
        }
    }
}

/// The events of a descriptor that wake the launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interest {
    /// There is something to read, or the other end is closed.
    Messages,
    /// The other end is closed. Another process reads the data.
    HangUp,
}

#[derive(Debug, Default)]
pub(super) struct Ready {
    pub(super) requests: bool,
    pub(super) jails: Vec<u64>,
    pub(super) workers: Vec<u64>,
    pub(super) zygotes: Vec<u64>,
    pub(super) ended_zygotes: Vec<u64>,
    pub(super) fork_server: bool,
    pub(super) idle: bool,
}

/// The registered descriptors of all sandboxes. Each wakes the launcher once and is then registered again, except the
/// request socket. A descriptor that was closed here can live on for a moment in an earlier fork, and would wake the
/// launcher for nothing.
#[derive(Debug)]
pub(super) struct Listener {
    epoll: OwnedFd,
}

impl Listener {
    pub(super) fn new(requests: &OwnedFd) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(Token::Requests.number());
        epoll::add(&epoll, requests, data, epoll::EventFlags::IN)?;
        Ok(Self { epoll })
    }

    /// Registers this descriptor for one wake-up.
    pub(super) fn listen(&self, token: Token, fd: &OwnedFd, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.number());
        // epoll always reports a hang-up.
        let once = match interest {
            Interest::Messages => epoll::EventFlags::IN | epoll::EventFlags::ONESHOT,
            Interest::HangUp => epoll::EventFlags::ONESHOT,
        };
        match epoll::modify(&self.epoll, fd.as_fd(), data, once) {
            Err(rustix::io::Errno::NOENT) => Ok(epoll::add(&self.epoll, fd.as_fd(), data, once)?),
            other => Ok(other?),
        }
    }

    pub(super) fn wait(&self, timeout: Option<&Timespec>) -> io::Result<Ready> {
        let mut room = [const { MaybeUninit::uninit() }; MAX_EVENTS_PER_WAIT];
        let (events, _) = epoll::wait(&self.epoll, &mut room, timeout)?;
        let mut ready = Ready {
            idle: events.is_empty(),
            ..Ready::default()
        };
        for event in events {
            match Token::of(event.data.u64()) {
                Token::Requests => ready.requests = true,
                Token::Jail(id) => ready.jails.push(id),
                Token::Worker(id) => ready.workers.push(id),
                Token::Zygote(number) => ready.zygotes.push(number),
                Token::ZygoteEnd(number) => ready.ended_zygotes.push(number),
                Token::ForkServer => ready.fork_server = true,
            }
        }
        Ok(ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_converts_to_a_number_and_back() {
        for token in [
            Token::Requests,
            Token::Jail(0),
            Token::Worker(7),
            Token::Zygote(1),
            Token::ZygoteEnd(1 << 40),
            Token::ForkServer,
        ] {
            assert_eq!(Token::of(token.number()), token);
        }
    }

    #[test]
    fn each_descriptor_wakes_once_until_it_is_listened_to_again() {
        let (requests, _far) = rustix::pipe::pipe().unwrap();
        let (near, far) = rustix::pipe::pipe().unwrap();
        let listener = Listener::new(&requests).unwrap();
        let soon = Timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        listener.listen(Token::Jail(3), &near, Interest::Messages).unwrap();
        assert!(listener.wait(Some(&soon)).unwrap().idle);
        rustix::io::write(&far, b"x").unwrap();
        assert_eq!(listener.wait(Some(&soon)).unwrap().jails, [3]);
        assert!(listener.wait(Some(&soon)).unwrap().idle);
        listener.listen(Token::Jail(3), &near, Interest::Messages).unwrap();
        assert_eq!(listener.wait(Some(&soon)).unwrap().jails, [3]);
        listener.listen(Token::Jail(3), &near, Interest::HangUp).unwrap();
        assert!(listener.wait(Some(&soon)).unwrap().idle);
        drop(far);
        assert_eq!(listener.wait(Some(&soon)).unwrap().jails, [3]);
    }
}
