//! From the command line to what the engine needs: every wrong value is found here, before any load.

use crate::cli::{HttpArgs, LoadArgs, MemcachedArgs};
use crate::engine::{Address, Settings, Wait};
use crate::failure::Failure;
use crate::protocol::{http, memcached, Workload};
use crate::schedule::Profile;
use crate::units;
use crate::zipf::Zipf;
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const INTERVALS_NS: std::ops::RangeInclusive<u64> = 100_000_000..=500_000_000;
const DEFAULT_DURATION_NS: u64 = 10_000_000_000;
const HIGHEST_ZIPF: f64 = 10.0;

fn usage<T>(text: String) -> Result<T, Failure> {
    Err(Failure::Usage(text))
}

/// What is asked of the service, and before that stored in it.
pub struct Workloads {
    pub address: Address,
    pub main: Box<dyn Workload>,
    /// What to store first, and how many requests that takes.
    pub preload: Option<(Box<dyn Workload>, u64)>,
    pub preload_only: bool,
}

fn resolve(target: &str) -> Result<Address, Failure> {
    if let Some(path) = target.strip_prefix("unix:") {
        return Ok(Address::Unix(PathBuf::from(path)));
    }
    let wrong = |why: &str| {
        Failure::Usage(format!(
            "target `{target}`: {why}; write HOST:PORT, such as 127.0.0.1:11211, or unix:PATH"
        ))
    };
    let mut found = target.to_socket_addrs().map_err(|e| wrong(&e.to_string()))?;
    found.next().map(Address::Tcp).ok_or_else(|| wrong("the name has no address"))
}

fn zipf(n: u64, exponent: f64) -> Result<Zipf, Failure> {
    if !(0.0..=HIGHEST_ZIPF).contains(&exponent) {
        return usage(format!("--zipf {exponent}: give an exponent from 0 (uniform) to {HIGHEST_ZIPF}"));
    }
    Ok(Zipf::new(n, exponent))
}

pub fn memcached(args: &MemcachedArgs) -> Result<Workloads, Failure> {
    let mix = memcached::Mix::parse(&args.mix).map_err(|e| Failure::Usage(format!("--mix: {e}")))?;
    let keys = Arc::new(memcached::KeySpace {
        count: args.keys,
        prefix: args.key_prefix.clone(),
        key_size: args.key_size,
        value_size: args.value_size,
    });
    keys.check().map_err(Failure::Usage)?;
    let main = memcached::Requests {
        keys: Arc::clone(&keys),
        mix,
        multiget_keys: args.multiget_keys,
        zipf: zipf(args.keys, args.zipf)?,
        seed: args.load.seed,
    };
    let preload: Option<(Box<dyn Workload>, u64)> =
        (args.load_keys || args.load_only).then(|| (Box::new(memcached::Preload { keys }) as _, args.keys));
    Ok(Workloads {
        address: resolve(&args.target)?,
        main: Box::new(main),
        preload,
        preload_only: args.load_only,
    })
}

/// Address, value of the Host header, and the path in the URL if it has one.
fn http_target(target: &str) -> Result<(Address, String, Option<String>), Failure> {
    if target.starts_with("unix:") {
        return Ok((resolve(target)?, "localhost".to_string(), None));
    }
    let Some(rest) = target.strip_prefix("http://") else {
        return usage(format!(
            "target `{target}`: write http://HOST:PORT, such as http://127.0.0.1:8080, or unix:PATH"
        ));
    };
    let (host, path) = match rest.find('/') {
        Some(slash) => (&rest[..slash], Some(rest[slash..].to_string())),
        None => (rest, None),
    };
    let port = if host.rsplit(']').next().is_some_and(|end| end.contains(':')) { "" } else { ":80" };
    Ok((resolve(&format!("{host}{port}"))?, host.to_string(), path.filter(|path| path != "/")))
}

fn check_paths(paths: &[String]) -> Result<(), Failure> {
    let bad = |path: &&String| !path.starts_with('/') || path.bytes().any(|b| b <= b' ' || b == 0x7f);
    match paths.iter().find(bad) {
        Some(path) => {
            usage(format!("path `{path}`: it must begin with / and hold no blanks (write them as %20)"))
        }
        None => Ok(()),
    }
}

fn http_paths(args: &HttpArgs, in_url: Option<String>) -> Result<(http::Paths, u64), Failure> {
    if let (Some(pattern), Some(count)) = (&args.path_pattern, args.path_count) {
        let Some((before, after)) = pattern.split_once("{}") else {
            return usage(format!("--path-pattern `{pattern}`: it needs {{}} where the number belongs"));
        };
        check_paths(std::slice::from_ref(pattern))?;
        return Ok((http::Paths::Pattern { before: before.to_string(), after: after.to_string() }, count));
    }
    let mut paths = args.paths.clone();
    if let Some(file) = &args.path_file {
        let text = read_file("--path-file", file)?;
        paths =
            text.lines().map(str::trim).filter(|line| !line.is_empty()).map(ToString::to_string).collect();
        if paths.is_empty() {
            return usage(format!("--path-file {}: it holds no path", file.display()));
        }
    }
    if paths.is_empty() {
        paths.push(in_url.unwrap_or_else(|| "/".to_string()));
    }
    check_paths(&paths)?;
    let count = paths.len() as u64;
    Ok((http::Paths::List(paths), count))
}

pub fn http(args: &HttpArgs) -> Result<Workloads, Failure> {
    let (address, host, path) = http_target(&args.target)?;
    let (paths, count) = http_paths(args, path)?;
    for header in &args.headers {
        if !header.contains(':') || header.contains(['\r', '\n']) {
            return usage(format!("--header `{header}`: write NAME: VALUE, such as 'Accept-Encoding: gzip'"));
        }
    }
    let main = http::Requests::new(paths, zipf(count, args.zipf)?, args.load.seed, &host, &args.headers);
    Ok(Workloads { address, main: Box::new(main), preload: None, preload_only: false })
}

fn read_file(option: &str, path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|e| {
        Failure::Usage(format!("{option} {}: {e}; give a file that can be read", path.display()))
    })
}

/// Checks what depends on several options, and makes the engine's settings.
pub fn settings(args: &LoadArgs, address: Address) -> Result<Settings, Failure> {
    if !INTERVALS_NS.contains(&args.interval) {
        return usage(format!(
            "--interval {}: give a window from 100ms to 500ms",
            units::show_ns(args.interval)
        ));
    }
    if args.max_outstanding < args.connections {
        return usage(format!(
            "--max-outstanding {}: it must not be below --connections {}, or some would never be used",
            args.max_outstanding, args.connections
        ));
    }
    if args.search_min == 0 || args.search_max < args.search_min {
        return usage("--search-min must be above 0, and --search-max not below it".to_string());
    }
    if args.search_tolerance == 0 {
        return usage("--search-tolerance must be above 0, or the search would never end".to_string());
    }
    if args.step_duration == 0 {
        return usage("--step-duration must be above 0".to_string());
    }
    if args.duration.is_some_and(|duration| duration > 0 && duration <= args.warmup) {
        return usage("--warmup must be shorter than --duration, or nothing would be measured".to_string());
    }
    if args.client.as_ref().is_some_and(|client| !(1..=64).contains(&client.chars().count())) {
        return usage("--client: give a name of 1 to 64 characters".to_string());
    }
    if args.search_repeats % 2 == 0 {
        return usage(format!(
            "--search-repeats {}: give an odd number, so that there is a majority",
            args.search_repeats
        ));
    }
    Ok(Settings {
        address,
        connections: args.connections as usize,
        depth: args.pipeline as usize,
        max_outstanding: args.max_outstanding as usize,
        timeout_ns: args.timeout,
        connect_timeout_ns: args.connect_timeout,
        interval_ns: args.interval,
        wait: if args.spin { Wait::Spin } else { args.wait },
    })
}

/// The rate over time, and how long the run is to last.
pub fn profile(args: &LoadArgs) -> Result<(Profile, u64), Failure> {
    let until_stopped = |duration: u64| if duration == 0 { u64::MAX } else { duration };
    let Some(path) = &args.profile else {
        let duration = until_stopped(args.duration.unwrap_or(DEFAULT_DURATION_NS));
        return Ok((Profile::constant(args.rate), duration));
    };
    let profile = Profile::parse(&read_file("--profile", path)?, args.profile_shape)
        .map_err(|e| Failure::Usage(format!("--profile {}: {e}", path.display())))?;
    match args.duration {
        None if profile.last_line_ns == 0 => usage(format!(
            "--profile {}: a single line says no end; add a line with the end's time, or give --duration",
            path.display()
        )),
        None => {
            let end = profile.last_line_ns;
            Ok((profile, end))
        }
        Some(duration) => Ok((profile, until_stopped(duration))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// URLs give address, Host header and path; a missing port is 80.
    #[test]
    fn http_targets() {
        let (address, host, path) = http_target("http://127.0.0.1:8080/a/b").unwrap();
        assert_eq!(address.to_string(), "127.0.0.1:8080");
        assert_eq!((host.as_str(), path.as_deref()), ("127.0.0.1:8080", Some("/a/b")));
        let (address, _, path) = http_target("http://127.0.0.1/").unwrap();
        assert_eq!((address.to_string().as_str(), path), ("127.0.0.1:80", None));
        let (address, _, _) = http_target("http://[::1]").unwrap();
        assert_eq!(address.to_string(), "[::1]:80");
        assert!(http_target("https://127.0.0.1").is_err() && http_target("127.0.0.1:80").is_err());
    }

    /// Paths that would break the request are refused.
    #[test]
    fn paths_are_checked() {
        assert!(check_paths(&["/a%20b?c=d".to_string()]).is_ok());
        for bad in ["a", "", "/a b", "/a\r\nX: y"] {
            assert!(check_paths(&[bad.to_string()]).is_err(), "{bad:?}");
        }
    }
}
