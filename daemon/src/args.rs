//! The flags that every process shares. Each binary flattens them into its own `Args`.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

/// Whether a socket of IPv6 leaves IPv4 out; not there where the kernel has no IPv6.
const ONLY_IPV6: &str = "/proc/sys/net/ipv6/bindv6only";

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line, for log collectors.
    #[default]
    Json,
    /// Coloured lines, for people.
    Pretty,
}

/// Flags of every process: `#[command(flatten)] daemon: daemon::Args`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Process")]
pub struct Args {
    /// Format of log lines.
    #[arg(long, env = "FIREFLYER_LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Which log lines are printed: a level, or directives such as `info,operator=debug`.
    #[arg(long, env = "FIREFLYER_LOG_LEVEL", default_value = "info")]
    pub log_level: String,
    /// Address of /metrics, /live and /ready. By default every address, on the port of the program.
    #[arg(long, env = "FIREFLYER_METRICS_LISTEN")]
    pub metrics_listen: Option<SocketAddr>,
}

impl Args {
    /// Where to serve metrics: as given, else on every address at `port`.
    pub fn metrics_address(&self, port: u16) -> SocketAddr {
        listen_address(self.metrics_listen, port)
    }
}

/// Where to listen: as given, else on every address at `port`.
pub fn listen_address(given: Option<SocketAddr>, port: u16) -> SocketAddr {
    given.unwrap_or_else(|| SocketAddr::new(every_address(), port))
}

/// The address that means all, of both kinds where one socket can serve both. Else of IPv4 alone.
fn every_address() -> IpAddr {
    let every = IpAddr::from(Ipv6Addr::UNSPECIFIED);
    let serves_both = fs::read_to_string(ONLY_IPV6).is_ok_and(|only| only.trim() == "0");
    if serves_both && TcpListener::bind((every, 0)).is_ok() {
        every
    } else {
        IpAddr::from(Ipv4Addr::UNSPECIFIED)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        daemon: Args,
    }

    #[test]
    fn the_port_of_the_process_is_the_default() {
        let program = Program::parse_from(["program"]);
        let address = program.daemon.metrics_address(9400);
        assert_eq!(address.port(), 9400);
        assert!(address.ip().is_unspecified());
        assert_eq!(program.daemon.log_format, LogFormat::Json);
    }

    #[test]
    fn every_loopback_address_of_this_machine_is_listened_on() {
        let listener = TcpListener::bind((every_address(), 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        for loopback in [
            IpAddr::from(Ipv4Addr::LOCALHOST),
            IpAddr::from(Ipv6Addr::LOCALHOST),
        ] {
            // An address that cannot be bound does not exist here.
            if TcpListener::bind((loopback, 0)).is_ok() {
                TcpStream::connect((loopback, port)).unwrap();
            } else {
                eprintln!("not run: this machine has no {loopback}");
            }
        }
    }

    #[test]
    fn an_address_that_is_none_is_refused_while_parsing() {
        let refused = Program::try_parse_from(["program", "--metrics-listen", "everywhere"]);
        assert!(refused.is_err_and(|error| error.to_string().contains("--metrics-listen")));
    }
}
