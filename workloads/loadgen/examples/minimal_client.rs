//! The least that an open-loop memcached client can be: Poisson GETs over some connections, sleeping in `epoll_pwait2`,
//! every latency kept and sorted at the end. The bench compares the generator with it.
//!
//! `minimal_client PORT RATE SECONDS`

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

const CONNECTIONS: usize = 16;
const KEYS: u64 = 100_000;

fn now_ns() -> u64 {
    // SAFETY: `time` is valid for writing.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

fn cpu_ns() -> u64 {
    // SAFETY: `usage` is valid for writing.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let ns = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1_000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn gap_ns(state: &mut u64, rate: f64) -> u64 {
    let uniform = ((random(state) >> 11) + 1) as f64 / (1u64 << 53) as f64;
    (-uniform.ln() * 1e9 / rate) as u64
}

fn send(stream: &mut TcpStream, state: &mut u64) {
    let request = format!("get key-{:012}\r\n", random(state) % KEYS);
    stream.write_all(request.as_bytes()).expect("the server takes requests");
}

fn main() {
    let arguments: Vec<f64> = std::env::args().skip(1).map(|a| a.parse().expect("a number")).collect();
    let [port, rate, seconds] = arguments[..] else { panic!("minimal_client PORT RATE SECONDS") };
    let mut streams: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| TcpStream::connect(("127.0.0.1", port as u16)).expect("the server listens"))
        .collect();
    // SAFETY: integers only.
    let epoll = unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0);
        libc::epoll_create1(0)
    };
    for (i, stream) in streams.iter().enumerate() {
        stream.set_nonblocking(true).expect("a socket");
        stream.set_nodelay(true).expect("a TCP socket");
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: i as u64 };
        // SAFETY: `event` lives through the call.
        unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, stream.as_raw_fd(), &raw mut event) };
    }
    let mut state = 88_172_645_463_325_252;
    let mut idle: VecDeque<usize> = (0..CONNECTIONS).collect();
    let mut queue: VecDeque<u64> = VecDeque::new();
    let mut intended = [0u64; CONNECTIONS];
    let mut latencies: Vec<u64> = Vec::with_capacity((rate * seconds * 1.2) as usize);
    let mut buffer = [0u8; 4096];
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; CONNECTIONS];
    let cpu_before = cpu_ns();
    let start = now_ns();
    let end = start + (seconds * 1e9) as u64;
    let mut due = start + gap_ns(&mut state, rate);
    let mut sent = 0u64;
    while now_ns() < end || idle.len() < CONNECTIONS {
        while due <= now_ns().min(end) {
            match idle.pop_front() {
                Some(i) => {
                    intended[i] = due;
                    send(&mut streams[i], &mut state);
                    sent += 1;
                }
                None => queue.push_back(due),
            }
            due += gap_ns(&mut state, rate);
        }
        let wait = due.saturating_sub(now_ns()).min(10_000_000);
        let timeout = libc::timespec { tv_sec: 0, tv_nsec: wait as i64 };
        // SAFETY: `events` is valid for writing its length.
        let ready = unsafe {
            let none = std::ptr::null::<libc::sigset_t>();
            let room = events.len() as i32;
            libc::syscall(
                libc::SYS_epoll_pwait2,
                epoll,
                events.as_mut_ptr(),
                room,
                &raw const timeout,
                none,
                0,
            )
        };
        for event in &events[..ready.max(0) as usize] {
            let i = event.u64 as usize;
            let n = streams[i].read(&mut buffer).expect("an answer");
            if !buffer[..n].ends_with(b"END\r\n") {
                continue;
            }
            latencies.push(now_ns() - intended[i]);
            match queue.pop_front() {
                Some(waiting) => {
                    intended[i] = waiting;
                    send(&mut streams[i], &mut state);
                    sent += 1;
                }
                None => idle.push_back(i),
            }
        }
    }
    let cpu = cpu_ns() - cpu_before;
    latencies.sort_unstable();
    let percentile =
        |share: f64| latencies[((latencies.len() as f64 * share) as usize).min(latencies.len() - 1)];
    println!(
        "{{\"sent\": {sent}, \"p50_ns\": {}, \"p99_ns\": {}, \"cpu_per_request_ns\": {}}}",
        percentile(0.5),
        percentile(0.99),
        cpu / sent.max(1)
    );
}
