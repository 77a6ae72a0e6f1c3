//! Sets up `tracing` once per process. Lines go to standard error: standard output belongs to
//! whatever a command prints for its caller.

use tracing_subscriber::EnvFilter;

use crate::args::{Args, LogFormat};

/// Why logs could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directives of `--log-level` do not parse.
    #[error(
        "failed to read --log-level `{given}`: use a level such as `info`, or `info,operator=debug`"
    )]
    Level {
        /// What was given.
        given: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Somebody set up logs before.
    #[error("failed to set up logs: this process has set them up already")]
    Twice,
}

/// Starts logging as the flags say. Call it once, before anything else.
pub fn init(args: &Args) -> Result<(), Error> {
    let filter = EnvFilter::try_new(&args.log_level).map_err(|source| Error::Level {
        given: args.log_level.clone(),
        source,
    })?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Json => lines
            .json()
            .flatten_event(true)
            .with_target(true)
            .try_init(),
        LogFormat::Pretty => lines.try_init(),
    }
    .map_err(|_already_set| Error::Twice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_level_is_named() {
        let args = Args {
            log_format: LogFormat::Json,
            log_level: "operator=loud".to_owned(),
            metrics_listen: None,
        };
        assert!(init(&args).is_err_and(|error| error.to_string().contains("operator=loud")));
    }
}
