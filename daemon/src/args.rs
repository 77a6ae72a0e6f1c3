//! The flags that every process shares. Each binary flattens them into its own `Args`.

use std::net::{Ipv4Addr, SocketAddr};

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
    /// How log lines are written.
    #[arg(long, env = "FIREFLYER_LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Which log lines are written: a level, or directives such as `info,operator=debug`.
    #[arg(long, env = "FIREFLYER_LOG_LEVEL", default_value = "info")]
    pub log_level: String,
    /// Address of /metrics, /live and /ready; by default every address, on the process's own port.
    #[arg(long, env = "FIREFLYER_METRICS_LISTEN")]
    pub metrics_listen: Option<SocketAddr>,
}

impl Args {
    /// Where to serve metrics: as told, else on every address at `port`.
    pub fn metrics_address(&self, port: u16) -> SocketAddr {
        self.metrics_listen
            .unwrap_or_else(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(
            program.daemon.metrics_address(9400).to_string(),
            "0.0.0.0:9400"
        );
        assert_eq!(program.daemon.log_format, LogFormat::Json);
    }

    #[test]
    fn an_address_that_is_none_is_refused_while_parsing() {
        let refused = Program::try_parse_from(["program", "--metrics-listen", "everywhere"]);
        assert!(refused.is_err_and(|error| error.to_string().contains("--metrics-listen")));
    }
}
