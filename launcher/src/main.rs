//! The launcher: first process of the trainer container. It starts the ranks of one node, passes
//! signals on, keeps their last words, and reports how they ended. What a gang is, and when its
//! processes may start, was decided before: by the operator and by the sidecar's startup probe.

mod args;
mod environment;
mod gang;
mod limits;
mod output;
mod pause;
mod processes;
mod report;
mod run;
mod signals;

use std::process::ExitCode;

fn main() -> ExitCode {
    end_process_on_panic();
    match args::parse(std::env::args_os().skip(1)) {
        Ok(args::Action::Run(args)) => run::run(&args),
        Ok(args::Action::Pause) => pause::pause(),
        Ok(args::Action::Print(text)) => report::print(&text, ExitCode::SUCCESS),
        Err(error) => report::print(&format!("{error}\n{}", args::USAGE), ExitCode::from(2)),
    }
}

/// Makes a panic on any thread end the process, and so the container: ranks would wait for ever
/// for the thread that reads what they print.
fn end_process_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}
