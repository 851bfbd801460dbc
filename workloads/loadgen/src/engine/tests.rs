//! The engine against servers of a few lines.

use super::{Address, Engine, Load, Observer, Outcome, Phase, Settings, Wait, Window};
use crate::protocol::{http, Workload};
use crate::schedule::{Arrivals, Profile};
use crate::zipf::Zipf;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// Keeps what every window counted.
#[derive(Default)]
struct Windows(Vec<(u64, u64, u64, u64)>);

impl Observer for Windows {
    fn window(&mut self, window: &Window) -> std::io::Result<()> {
        let counts = window.counts;
        self.0.push((counts.scheduled, counts.unsent, window.outstanding, window.oldest_outstanding_ns));
        Ok(())
    }
}

/// Serves every connection on a thread of its own.
fn serve(each: fn(TcpStream)) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || each(stream));
        }
    });
    Address::Tcp(address)
}

/// Takes everything and answers nothing.
fn mute(mut stream: TcpStream) {
    while stream.read(&mut [0; 1024]).is_ok_and(|n| n > 0) {}
}

/// Answers each request after 20 ms.
fn slow(mut stream: TcpStream) {
    while stream.read(&mut [0; 1024]).is_ok_and(|n| n > 0) {
        thread::sleep(Duration::from_millis(20));
        if stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").is_err() {
            return;
        }
    }
}

/// One second at a rate, over four connections.
fn run(address: Address, rate: u64, max_outstanding: usize) -> (Outcome, Windows) {
    let paths = http::Paths::List(vec!["/".to_string()]);
    let workload: Box<dyn Workload> = Box::new(http::Requests::new(paths, Zipf::new(1, 0.0), 1, "h", &[]));
    let settings = Settings {
        address,
        connections: 4,
        depth: 1,
        max_outstanding,
        timeout_ns: 0,
        connect_timeout_ns: 1_000_000_000,
        interval_ns: 100_000_000,
        wait: Wait::Auto,
    };
    let mut engine = Engine::new(settings, workload, None, Windows::default()).unwrap();
    assert_eq!(engine.connect().unwrap(), Ok(4));
    engine.begin_windows();
    let load = Load::Open(Arrivals::new(Profile::constant(rate), 1, 0));
    let phase = Phase { load, length_ns: 1_000_000_000, warmup_ns: 0, drain_ns: 100_000_000 };
    let outcome = engine.run(phase).unwrap();
    engine.finish_windows().unwrap();
    (outcome, engine.observer)
}

/// Beyond the cap requests are unsent, in the window they were due in; none is lost from the count.
#[test]
fn cap_and_unsent() {
    let (outcome, windows) = run(serve(mute), 1_000, 50);
    let counts = outcome.totals.counts;
    assert_eq!((counts.sent, counts.failed, counts.completed), (4, 4, 0));
    assert_eq!(counts.unsent, counts.scheduled - 4);
    assert!((800..1_200).contains(&counts.scheduled));
    let during = &windows.0[..10];
    let (scheduled, unsent) = during.iter().fold((0, 0), |(s, u), window| (s + window.0, u + window.1));
    assert_eq!(scheduled - unsent, 50);
    assert_eq!(during[9].2, 50);
    assert!(during[9].3 > 800_000_000, "the oldest has waited nearly all the time");
}

/// The wait for a busy connection is in the response time and neither in the service time nor in the lag.
#[test]
fn queue_wait_is_kept_apart_from_lag() {
    let (outcome, _) = run(serve(slow), 180, 1_000);
    let latencies = &outcome.totals.latencies;
    assert_eq!(outcome.totals.counts.completed, outcome.totals.counts.scheduled);
    assert_eq!(latencies.lag.total(), outcome.totals.counts.scheduled);
    let [response, service, lag] =
        [&latencies.response, &latencies.service, &latencies.lag].map(|h| h.percentile_ns(500_000));
    assert!(response > service + service / 4, "{response} {service}");
    assert!(lag * 4 < response - service, "{lag}");
}
