//! What has changed since a base commit, as git sees it, and how many commits there are. Without a base or the whole
//! history it is everything: a test that is run needlessly costs less than one that is missing.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::args::Usage;
use crate::r#gen::root;

/// The base when none is given.
const PARENT: &str = "HEAD^";

/// What a run has to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Everything, and why.
    Everything(String),
    /// Files that differ from the base, in the commits since and in the working tree.
    Since {
        /// The base, short.
        base: String,
        paths: Vec<String>,
        /// Commits from the first to this one: whose turn it is follows from that.
        commits: usize,
    },
}

impl Change {
    /// Asks git. A base that is named has to be there; the parent of the last commit need not.
    pub(crate) fn since(base: Option<&str>) -> Result<Self> {
        Self::of(&root(), base)
    }

    fn of(repository: &Path, base: Option<&str>) -> Result<Self> {
        let found = look(repository, base.unwrap_or(PARENT));
        match (found, base) {
            (Err(error), Some(base)) => Err(Usage(format!(
                "--base {base}: git cannot compare with it: {error:#}"
            ))
            .into()),
            (Err(error), None) => Ok(Self::Everything(format!(
                "git cannot compare with the commit before: {error:#}"
            ))),
            (Ok(change), _) => Ok(change),
        }
    }
}

fn look(repository: &Path, base: &str) -> Result<Change> {
    let git = |words: &[&str]| git(repository, words);
    if git(&["rev-parse", "--is-shallow-repository"])?.trim() != "false" {
        return Ok(Change::Everything(
            "the history is cut off (git fetch --unshallow brings it)".to_owned(),
        ));
    }
    // What the base's own branch did meanwhile is none of ours.
    let fork = git(&["merge-base", base, "HEAD"])?.trim().to_owned();
    let commits = git(&["rev-list", "--count", "HEAD"])?;
    let changed = git(&["diff", "--name-only", "--no-renames", "-z", &fork, "--"])?;
    let others = git(&["ls-files", "--others", "--exclude-standard", "-z"])?;
    let paths = changed.split('\0').chain(others.split('\0'));
    Ok(Change::Since {
        base: git(&["rev-parse", "--short=10", &fork])?.trim().to_owned(),
        paths: paths
            .filter(|path| !path.is_empty())
            .map(str::to_owned)
            .collect(),
        commits: commits.trim().parse().context("failed to count commits")?,
    })
}

/// The commit that is checked out, if git knows.
pub(super) fn head() -> Option<String> {
    let hash = git(&root(), &["rev-parse", "--short=10", "HEAD"]).ok()?;
    Some(hash.trim().to_owned())
}

fn git(repository: &Path, words: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .args(words)
        .current_dir(repository)
        .output()
        .context("failed to start git")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}", said.lines().next().unwrap_or("git failed"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process;

    use super::{Change, git};

    /// A repository with this many commits; each writes a file of its number.
    struct Repository(PathBuf);

    impl Repository {
        fn new(name: &str, commits: usize) -> Self {
            let folder = env::temp_dir().join(format!("fireflyer-{name}-{}", process::id()));
            fs::create_dir_all(&folder).unwrap();
            let made = Self(folder);
            made.git(&["init", "--quiet"]);
            for number in 0..commits {
                made.write(&number.to_string());
                made.git(&["add", "."]);
                made.git(&["commit", "--quiet", "--message", "one more"]);
            }
            made
        }

        fn git(&self, words: &[&str]) -> String {
            let who = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"];
            git(&self.0, &[&who, words].concat()).unwrap()
        }

        fn write(&self, name: &str) {
            fs::write(self.0.join(name), name).unwrap();
        }

        fn change(&self, base: Option<&str>) -> Change {
            Change::of(&self.0, base).unwrap()
        }
    }

    impl Drop for Repository {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn since(change: Change) -> (Vec<String>, usize) {
        match change {
            Change::Since { paths, commits, .. } => (paths, commits),
            Change::Everything(why) => panic!("{why}"),
        }
    }

    #[test]
    fn files_of_the_last_commit_and_of_the_working_tree_have_changed() {
        let repository = Repository::new("change", 3);
        repository.write("new");
        repository.write("1");
        fs::write(repository.0.join("1"), "other").unwrap();
        let (paths, commits) = since(repository.change(None));
        assert_eq!(
            (paths, commits),
            (vec!["1".into(), "2".into(), "new".into()], 3)
        );
        let (paths, _) = since(repository.change(Some("HEAD~2")));
        assert_eq!(paths, ["1", "2", "new"]);
    }

    #[test]
    fn of_a_branch_only_its_own_commits_count() {
        let repository = Repository::new("branch", 2);
        repository.git(&["branch", "mine"]);
        repository.write("theirs");
        repository.git(&["add", "."]);
        repository.git(&["commit", "--quiet", "--message", "theirs"]);
        repository.git(&["branch", "theirs"]);
        repository.git(&["checkout", "--quiet", "mine"]);
        assert_eq!(since(repository.change(Some("theirs"))).0, [""; 0]);
    }

    #[test]
    fn without_a_parent_or_the_whole_history_everything_has_changed() {
        let first = Repository::new("first", 1);
        assert!(matches!(first.change(None), Change::Everything(_)));

        let whole = Repository::new("whole", 3);
        let cut = Repository(whole.0.with_extension("cut"));
        let from = format!("file://{}", whole.0.display());
        let to = cut.0.to_string_lossy().into_owned();
        whole.git(&["clone", "--quiet", "--depth", "2", &from, &to]);
        match cut.change(None) {
            Change::Everything(why) => assert!(why.contains("--unshallow"), "{why}"),
            Change::Since { .. } => panic!("half a history counts commits wrongly"),
        }

        let none = env::temp_dir().join(format!("fireflyer-none-{}", process::id()));
        fs::create_dir_all(&none).unwrap();
        let change = Change::of(Path::new(&none), None).unwrap();
        fs::remove_dir_all(&none).unwrap();
        assert!(matches!(change, Change::Everything(_)));
    }

    #[test]
    fn a_base_that_is_not_there_is_an_error() {
        let repository = Repository::new("base", 2);
        let error = Change::of(&repository.0, Some("nowhere")).unwrap_err();
        assert!(error.to_string().contains("--base nowhere"), "{error}");
    }
}
