//! The command line. Every option is also part of the report's header line.

use crate::engine::Wait;
use crate::schedule::Shape;
use crate::units::{self, RateRange, Target};
use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use std::path::PathBuf;

const EXAMPLES: &str = "Examples:
  parties-loadgen memcached 127.0.0.1:11211 --load-keys --rate 20k --duration 30s
  parties-loadgen http http://127.0.0.1:8080 --path /index.html --rate 5k --duration 10s
  parties-loadgen memcached 127.0.0.1:11211 --scan 10k:100k:10k --step-duration 2s
  parties-loadgen http http://127.0.0.1:8080 --search p99:10ms
  parties-loadgen control /run/load.sock rate 5k

Results are JSON lines on stdout (or --report FILE); tables and messages are on stderr.
Exit code: 0 sound, 1 the service cannot be reached, 2 wrong usage, 3 the run is invalid (its summary says why).";

/// Open-loop load with interval tail latencies, for memcached and HTTP/1.1.
#[derive(Parser, Debug)]
#[command(name = "parties-loadgen", version, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Load a memcached server (text protocol: GET, multi-GET, SET)
    #[command(after_help = EXAMPLES)]
    Memcached(Box<MemcachedArgs>),
    /// Load an HTTP/1.1 server (GET on connections kept alive)
    #[command(after_help = EXAMPLES)]
    Http(Box<HttpArgs>),
    /// Steer a running generator through its control socket
    Control(ControlArgs),
    /// Print a shell completion script
    #[command(hide = true)]
    Completion { shell: clap_complete::Shell },
}

#[derive(Args, Debug)]
pub struct ControlArgs {
    /// The path that the generator was given as --control
    pub socket: PathBuf,
    /// What to do: `rate 5000`, `status` or `stop`
    #[arg(required = true, num_args = 1..=2)]
    pub command: Vec<String>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug, Serialize)]
pub struct MemcachedArgs {
    /// Where the server listens: HOST:PORT or unix:PATH
    pub target: String,

    /// Operations and their weights: get, multiget, set
    #[arg(long, default_value = "get=1", value_name = "OP=WEIGHT,...", help_heading = "Requests")]
    pub mix: String,
    /// Keys of one multiget
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "Requests")]
    pub multiget_keys: u32,
    /// Size of the key space
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..), help_heading = "Requests")]
    pub keys: u64,
    /// Zipf exponent of the keys' popularity; 0 is uniform
    #[arg(long, default_value_t = 0.99, help_heading = "Requests")]
    pub zipf: f64,
    /// What every key begins with
    #[arg(long, default_value = "key-", help_heading = "Requests")]
    pub key_prefix: String,
    /// Length of a key in bytes
    #[arg(long, default_value = "16", value_parser = units::size_bytes, value_name = "BYTES", help_heading = "Requests")]
    pub key_size: usize,
    /// Length of a value in bytes, such as 100 or 4KiB
    #[arg(long, default_value = "100", value_parser = units::size_bytes, value_name = "BYTES", help_heading = "Requests")]
    pub value_size: usize,
    /// Store every key once before the load begins
    #[arg(long, help_heading = "Requests")]
    pub load_keys: bool,
    /// Store every key once, and nothing else
    #[arg(long, help_heading = "Requests")]
    pub load_only: bool,

    #[command(flatten)]
    #[serde(flatten)]
    pub load: LoadArgs,
}

#[derive(Args, Debug, Serialize)]
pub struct HttpArgs {
    /// Where the server listens: <http://HOST:PORT> or unix:PATH
    pub target: String,

    /// A path to GET; may be given several times, the most popular first
    #[arg(long = "path", value_name = "PATH", help_heading = "Requests")]
    pub paths: Vec<String>,
    /// A file of paths, one a line, the most popular first
    #[arg(long, value_name = "FILE", conflicts_with_all = ["paths", "path_pattern"], help_heading = "Requests")]
    pub path_file: Option<PathBuf>,
    /// A path with {} for a number from 0 to --path-count - 1, such as /page/{}.html
    #[arg(
        long,
        value_name = "PATTERN",
        conflicts_with = "paths",
        requires = "path_count",
        help_heading = "Requests"
    )]
    pub path_pattern: Option<String>,
    /// How many paths the pattern stands for
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), requires = "path_pattern", help_heading = "Requests")]
    pub path_count: Option<u64>,
    /// Zipf exponent of the paths' popularity; 0 is uniform
    #[arg(long, default_value_t = 0.99, help_heading = "Requests")]
    pub zipf: f64,
    /// A header to add, such as 'Accept-Encoding: gzip'; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE", help_heading = "Requests")]
    pub headers: Vec<String>,

    #[command(flatten)]
    #[serde(flatten)]
    pub load: LoadArgs,
}

/// What both protocols have in common.
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own on the command line")]
#[derive(Args, Debug, Serialize)]
pub struct LoadArgs {
    /// Mean rate of the Poisson arrivals, in requests per second, such as 500 or 5k
    #[arg(long, default_value = "1000", value_parser = units::rate_per_s, value_name = "RATE", help_heading = "Load")]
    #[serde(rename = "rate_per_s")]
    pub rate: u64,
    /// A file of lines `time rate`, such as `10s 5000`, in place of --rate
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "closed", "scan", "search"], help_heading = "Load")]
    pub profile: Option<PathBuf>,
    /// What the rate does between the profile's lines
    #[arg(long, value_enum, default_value_t = Shape::Step, help_heading = "Load")]
    pub profile_shape: Shape,
    /// Closed loop: every connection always has --pipeline requests in flight
    #[arg(long, conflicts_with_all = ["rate", "scan", "search"], help_heading = "Load")]
    pub closed: bool,
    /// How long requests are due; 0 is until stopped [default: the profile's last line, else 10s]
    #[arg(long, value_parser = units::duration_ns, conflicts_with_all = ["scan", "search"], help_heading = "Load")]
    #[serde(rename = "duration_ns")]
    pub duration: Option<u64>,
    /// Part of the duration at its beginning that the summary leaves out
    #[arg(long, default_value = "0", value_parser = units::duration_ns, value_name = "DURATION", conflicts_with_all = ["scan", "search"], help_heading = "Load")]
    #[serde(rename = "warmup_ns")]
    pub warmup: u64,
    /// The same seed, profile and options give the same schedule of arrivals, keys and paths
    #[arg(long, default_value_t = 1, help_heading = "Load")]
    pub seed: u64,
    /// Connections to the server
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000), help_heading = "Load")]
    pub connections: u32,
    /// Requests in flight on one connection
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "Load")]
    pub pipeline: u32,
    /// Cap on requests in flight and queued; requests due beyond it are counted as unsent
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000), help_heading = "Load")]
    pub max_outstanding: u32,
    /// A request not answered this long after it was sent has failed, and its connection is closed; 0 is never
    #[arg(long, default_value = "0", value_parser = units::duration_ns, value_name = "DURATION", help_heading = "Load")]
    #[serde(rename = "timeout_ns")]
    pub timeout: u64,
    /// How long the server may take to accept connections
    #[arg(long, default_value = "2s", value_parser = units::duration_ns, value_name = "DURATION", help_heading = "Load")]
    #[serde(rename = "connect_timeout_ns")]
    pub connect_timeout: u64,
    /// How long to wait for answers after the last request was due, also between steps
    #[arg(long, default_value = "5s", value_parser = units::duration_ns, value_name = "DURATION", help_heading = "Load")]
    #[serde(rename = "drain_timeout_ns")]
    pub drain_timeout: u64,
    /// Never sleep: less latency of the generator's own, for a whole core
    #[arg(long, help_heading = "Load")]
    pub spin: bool,
    /// How to sleep
    #[arg(long, value_enum, default_value_t = Wait::Auto, hide = true)]
    pub wait: Wait,

    /// Length of a reported window, from 100ms to 500ms
    #[arg(long, default_value = "500ms", value_parser = units::duration_ns, value_name = "DURATION", help_heading = "Report")]
    #[serde(rename = "interval_ns")]
    pub interval: u64,
    /// Write JSON lines to this file and not to stdout
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    pub report: Option<PathBuf>,
    /// Put the sparse response histogram into every interval line
    #[arg(long, help_heading = "Report")]
    pub interval_histograms: bool,
    /// No tables on stderr, only the JSON lines
    #[arg(long, help_heading = "Report")]
    pub json: bool,
    /// The daemon's histogram socket, such as /run/parties/histogram.sock
    #[arg(long, value_name = "PATH", requires = "service", help_heading = "Report")]
    pub histogram_socket: Option<PathBuf>,
    /// The registered service that the load is for
    #[arg(long, value_name = "NAME", requires = "histogram_socket", help_heading = "Report")]
    pub service: Option<String>,
    /// This client's name at the histogram socket, 1 to 64 characters [default: loadgen-PID]
    #[arg(long, value_name = "NAME", requires = "histogram_socket", help_heading = "Report")]
    pub client: Option<String>,
    /// Take commands at this Unix socket (see `parties-loadgen control --help`)
    #[arg(long, value_name = "PATH", help_heading = "Report")]
    pub control: Option<PathBuf>,

    /// The run is invalid if the send lag's percentile passes this
    #[arg(long, default_value = "2ms", value_parser = units::duration_ns, value_name = "DURATION", help_heading = "Validity")]
    #[serde(rename = "max_lag_ns")]
    pub max_lag: u64,
    /// The percentile of the send lag that --max-lag bounds
    #[arg(long, default_value = "p99", value_parser = units::percentile_ppm, value_name = "PERCENTILE", help_heading = "Validity")]
    #[serde(rename = "lag_percentile_ppm")]
    pub lag_percentile: u64,
    /// The run is invalid if a larger share of the requests due is never sent
    #[arg(long, default_value = "0.1%", value_parser = units::share_ppm, value_name = "SHARE", help_heading = "Validity")]
    #[serde(rename = "max_deviation_ppm")]
    pub max_deviation: u64,

    /// Measure the load-latency curve at the rates MIN, MIN+STEP ... MAX, such as 1k:10k:1k
    #[arg(long, value_parser = units::rate_range, value_name = "MIN:MAX:STEP", conflicts_with_all = ["rate", "search"], help_heading = "Scan and search")]
    pub scan: Option<RateRange>,
    /// Find the highest rate that meets a target, such as p99:10ms
    #[arg(long, value_parser = units::target, value_name = "TARGET", conflicts_with = "rate", help_heading = "Scan and search")]
    pub search: Option<Target>,
    /// Lowest rate of the search, and its first probe
    #[arg(long, default_value = "1k", value_parser = units::rate_per_s, value_name = "RATE", help_heading = "Scan and search")]
    #[serde(rename = "search_min_per_s")]
    pub search_min: u64,
    /// Highest rate of the search
    #[arg(long, default_value = "1M", value_parser = units::rate_per_s, value_name = "RATE", help_heading = "Scan and search")]
    #[serde(rename = "search_max_per_s")]
    pub search_max: u64,
    /// The search ends when the bracket is narrower than this share of the rate
    #[arg(long, default_value = "5%", value_parser = units::share_ppm, value_name = "SHARE", help_heading = "Scan and search")]
    #[serde(rename = "search_tolerance_ppm")]
    pub search_tolerance: u64,
    /// Runs of each probe, of which the majority decides (an odd number)
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99), help_heading = "Scan and search")]
    pub search_repeats: u32,
    /// Measured part of each step or probe
    #[arg(long, default_value = "2s", value_parser = units::duration_ns, value_name = "DURATION", help_heading = "Scan and search")]
    #[serde(rename = "step_duration_ns")]
    pub step_duration: u64,
    /// Load at the step's rate before it is measured
    #[arg(long, default_value = "500ms", value_parser = units::duration_ns, value_name = "DURATION", help_heading = "Scan and search")]
    #[serde(rename = "step_warmup_ns")]
    pub step_warmup: u64,
}
