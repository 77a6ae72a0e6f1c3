//! Processes that serve a mount, wait for it, panic, die and follow each other.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use fuse::Errno;
use fuse::answer::Answer;
use fuse::connection::FuseConnection;
use fuse::init::Negotiated;
use fuse::mount::{MountState, Unmount, state, unmount};
use fuse::notification::Notification;
use fuse::request::{FileOperation, Request, Unique};
use fuse::serve::{Replier, is_answering, serve};
use rustix::process::{Pid, Signal, kill_process};

use super::memory::Memory;
use super::mounted::{Folder, Mounted, PATIENCE, wait_until};

/// Set for this program as the server of a mount: the state that was saved, in hexadecimal digits.
const STATE: &str = "FUSE_TEST_STATE";
/// Set where it keeps some requests for itself.
const HOLDS: &str = "FUSE_TEST_HOLDS";
/// What the file `kept` has in each process.
const CONTENT: &[u8] = b"content";

fn memory() -> Memory {
    let memory = Memory::new(Duration::ZERO);
    memory.put("kept", CONTENT);
    memory
}

fn looks_up(request: &Request<'_>, wanted: &[u8]) -> bool {
    matches!(request.operation, FileOperation::Lookup { name } if name.as_bytes() == wanted)
}

/// Whether a process that keeps some requests for itself keeps this one.
fn is_held(request: &Request<'_>) -> bool {
    matches!(request.operation, FileOperation::Read { .. }) || looks_up(request, b"new")
}

/// Serves the mount whose descriptor is the standard input, as a successor if there was one before,
/// until it is killed; if this process was started for that. Says which requests it keeps.
pub(crate) fn role() -> Option<ExitCode> {
    let saved = std::env::var(STATE).ok()?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let byte = |at| u8::from_str_radix(&saved[at..at + 2], 16).unwrap();
    let saved: Vec<u8> = (0..saved.len()).step_by(2).map(byte).collect();
    let device = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let connection = FuseConnection::from_fd(device, Negotiated::restore(&saved).unwrap());
    let (memory, held) = (memory(), Mutex::new(Vec::new()));
    let holds = std::env::var_os(HOLDS).is_some();
    connection.notify(&Notification::Resend).unwrap();
    println!("ready");
    let handler = |request: Request<'_>, replier| {
        if holds && is_held(&request) {
            println!("{}", request.unique.raw());
            held.lock().unwrap().push(replier);
        } else {
            memory.handle(&request, replier);
        }
    };
    serve(&Arc::new(connection), 2.try_into().unwrap(), handler).unwrap();
    Some(ExitCode::SUCCESS)
}

/// Another process of this program that serves a mount.
struct Server {
    process: Child,
    lines: Receiver<String>,
}

impl Server {
    fn start(connection: &FuseConnection, environment: &[(&str, &str)]) -> Self {
        let saved = connection.negotiated().save();
        let saved: String = saved.iter().map(|byte| format!("{byte:02x}")).collect();
        let device = connection.as_fd().try_clone_to_owned().unwrap();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(STATE, saved)
            .envs(environment.iter().copied())
            .stdin(Stdio::from(device))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                sender.send(line).ok();
            }
        });
        let server = Self { process, lines };
        assert_eq!(server.line(), "ready");
        server
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

pub(crate) fn a_panic_or_a_dropped_request_is_eio_and_the_mount_goes_on() {
    // Programs end with a panic, unless its thread says that it costs an answer and no more.
    static ENDED: AtomicBool = AtomicBool::new(false);
    std::panic::set_hook(Box::new(|_| {
        ENDED.fetch_or(!is_answering(), Ordering::Relaxed);
    }));
    let mounted = Mounted::with(Duration::ZERO, |memory, request, replier| {
        if looks_up(&request, b"panic") {
            panic!("as a test wants it");
        } else if looks_up(&request, b"dropped") {
            drop(replier);
        } else {
            memory.handle(&request, replier);
        }
    });
    // More often than there are threads.
    for _ in 0..4 {
        for name in ["panic", "dropped"] {
            let error = fs::metadata(mounted.path(name)).unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(Errno::IO));
        }
    }
    drop(std::panic::take_hook());
    assert!(!ENDED.load(Ordering::Relaxed));
    fs::write(mounted.path("file"), b"goes on").unwrap();
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"goes on");
}

pub(crate) fn an_interrupt_names_the_request_that_a_program_waits_for() {
    let held: Arc<Mutex<Vec<(Unique, Replier)>>> = Arc::default();
    let interrupts: Arc<Mutex<Vec<Unique>>> = Arc::default();
    let (holds, interrupted) = (Arc::clone(&held), Arc::clone(&interrupts));
    let mounted = Mounted::with(Duration::ZERO, move |memory, request, replier| {
        if looks_up(&request, b"slow") {
            holds.lock().unwrap().push((request.unique, replier));
        } else if let FileOperation::Interrupt { unique } = request.operation {
            interrupted.lock().unwrap().push(unique);
        } else {
            memory.handle(&request, replier);
        }
    });
    let mut reader = Command::new("cat")
        .arg(mounted.path("slow"))
        .spawn()
        .unwrap();
    wait_until("a lookup", || held.lock().unwrap().len() == 1);
    kill_process(Pid::from_child(&reader), Signal::TERM).unwrap();
    wait_until("an interrupt", || interrupts.lock().unwrap().len() == 1);
    let (unique, replier) = held.lock().unwrap().remove(0);
    assert_eq!(interrupts.lock().unwrap()[..], [unique]);
    replier.answer(&Answer::Error(Errno::INTR)).unwrap();
    assert_eq!(reader.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
}

pub(crate) fn a_mount_whose_process_died_is_dead_and_can_be_detached() {
    let (folder, connection) = Folder::mount();
    let server = Server::start(&connection, &[]);
    drop(connection);
    let source = "fireflyer".to_owned();
    let live = MountState::Live {
        source: source.clone(),
    };
    assert_eq!(state(folder.path()).unwrap(), live);
    let opened = fs::File::open(folder.path().join("kept")).unwrap();
    drop(server);
    let error = fs::read_dir(folder.path()).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::NOTCONN));
    let dead = MountState::Dead { source };
    assert_eq!(state(folder.path()).unwrap(), dead);
    let busy = unmount(folder.path(), Unmount::WhenUnused).unwrap_err();
    assert!(busy.to_string().contains("it is in use"), "{busy}");
    unmount(folder.path(), Unmount::Detach).unwrap();
    assert_eq!(state(folder.path()).unwrap(), MountState::Absent);
    drop(opened);
}

pub(crate) fn a_successor_answers_what_was_read_and_programs_see_no_error() {
    let (folder, connection) = Folder::mount();
    let server = Server::start(&connection, &[(HOLDS, "")]);
    let [path, new] = ["kept", "new"].map(|name| folder.path().join(name));
    let reads = thread::spawn(move || fs::read(path));
    let mut held = vec![server.line()];
    // Later, since it locks the folder for as long as it waits.
    let path = new.clone();
    let makes = thread::spawn(move || fs::create_dir(path));
    held.push(server.line());
    drop(server);
    connection.notify(&Notification::Resend).unwrap();
    let seen: Arc<Mutex<Vec<Unique>>> = Arc::default();
    let sees = Arc::clone(&seen);
    let memory = Arc::new(memory());
    let _mounted = Mounted::serving(
        folder,
        connection,
        memory,
        move |memory, request, replier| {
            if request.unique.is_resent() {
                sees.lock().unwrap().push(request.unique);
            }
            memory.handle(&request, replier);
        },
    );
    wait_until("both", || reads.is_finished() && makes.is_finished());
    assert_eq!(reads.join().unwrap().unwrap(), CONTENT);
    makes.join().unwrap().unwrap();
    assert!(new.is_dir());
    let mut resent: Vec<_> = seen
        .lock()
        .unwrap()
        .iter()
        .map(|unique| unique.number())
        .collect();
    resent.sort_unstable();
    let held: Vec<u64> = held.iter().map(|line| line.parse().unwrap()).collect();
    assert_eq!(resent, held, "the same requests come again, and no others");
}

/// Each process is killed wherever it is, while programs read and list.
pub(crate) fn processes_that_are_killed_again_and_again_are_not_noticed() {
    let (folder, connection) = Folder::mount();
    let done = Arc::new(AtomicUsize::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    // Where this test fails, the connection ends with it, and so do they.
    let programs = [(); 2].map(|()| {
        let (done, stop) = (Arc::clone(&done), Arc::clone(&stop));
        let path = folder.path().to_owned();
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(fs::read(path.join("kept")).unwrap(), CONTENT);
                assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
                done.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    for _ in 0..20 {
        let server = Server::start(&connection, &[]);
        let before = done.load(Ordering::Relaxed);
        wait_until("answers", || done.load(Ordering::Relaxed) > before + 20);
        drop(server);
    }
    stop.store(true, Ordering::Relaxed);
    // Whoever waits for an answer gets it from the last one.
    let last = Server::start(&connection, &[]);
    for program in programs {
        program.join().unwrap();
    }
    drop(last);
}

pub(crate) fn a_mount_is_told_from_nothing_and_from_somebody_elses() {
    let folder = tempfile::tempdir().unwrap();
    for absent in [
        folder.path(),
        &folder.path().join("absent/too"),
        &folder.path().join("absent"),
    ] {
        assert_eq!(state(absent).unwrap(), MountState::Absent);
        unmount(absent, Unmount::WhenUnused).unwrap();
    }
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("source", folder.path(), "tmpfs", flags, None).unwrap();
    let foreign = MountState::Foreign {
        file_system_type: "tmpfs".to_owned(),
    };
    assert_eq!(state(folder.path()).unwrap(), foreign);
    unmount(folder.path(), Unmount::WhenUnused).unwrap();
    assert_eq!(state(folder.path()).unwrap(), MountState::Absent);
}
