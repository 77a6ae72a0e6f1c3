//! TrainingJobs that scenarios run: small shell programs that keep the contract of a trainer, and
//! the real trainer of the examples.

use serde_json::{Value, json};

/// Image tag of everything built from this workspace.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A trainer in shell that ends well at once.
pub const ENDS_WELL: &str = "echo trained as rank $RANK of $WORLD_SIZE";

/// A trainer in shell that works until it is asked to stop, then saves: rank 0 acknowledges.
pub const RUNS_UNTIL_ASKED: &str = r#"trap '' TERM
echo "running attempt $FIREFLYER_ATTEMPT as rank $RANK resume=${FIREFLYER_RESUME:-none}"
while [ ! -e /run/fireflyer/stop ]; do sleep 0.2; done
if [ "$RANK" = 0 ]; then
  printf '{"attempt":%s,"step":7,"digest":"sha256:%064d"}' "$FIREFLYER_ATTEMPT" 7 > /run/fireflyer/ack.tmp
  mv /run/fireflyer/ack.tmp /run/fireflyer/ack.json
fi"#;

/// A trainer in shell that saves step 5 when it begins and works until it is interrupted or killed. A
/// later attempt ends well if it finds what was saved.
pub const SAVES_AT_ONCE: &str = r#"trap '' TERM
saved=$FIREFLYER_CHECKPOINT_DIR/saved
[ "$FIREFLYER_ATTEMPT" -gt 1 ] && echo "goes on from $(cat $saved)" && [ -e "$saved" ] && exit 0
if [ "$RANK" = 0 ]; then
  mkdir -p "$FIREFLYER_CHECKPOINT_DIR" && echo step 5 > "$saved"
  printf '{"step":5,"checkpoint":{"attempt":%s,"step":5,"digest":"sha256:%064d"}}' "$FIREFLYER_ATTEMPT" 5 > /run/fireflyer/progress.tmp
  mv /run/fireflyer/progress.tmp /run/fireflyer/progress.json
fi
while [ ! -e /run/fireflyer/stop ]; do sleep 0.2; done"#;

/// A trainer in shell that prints which devices it sees.
pub const TELLS_ITS_DEVICES: &str = r#"cd /dev/fireflyer && echo files: * && cat gpu5
echo "visible: $NVIDIA_VISIBLE_DEVICES"
echo "pairs: $FIREFLYER_GPU_PAIRS"
echo "shared: $FIREFLYER_ROOT_PORT_SHARED""#;

/// A trainer in shell that saves nothing and never leaves by itself; a later attempt ends well at once. Each rank
/// prints its process id.
pub const NEVER_LEAVES: &str = r#"trap '' TERM
[ "$FIREFLYER_ATTEMPT" -gt 1 ] && exit 0
sh -c 'echo $PPID' > "/dev/shm/rank-$LOCAL_RANK"
while :; do sleep 1; done"#;

/// A trainer in shell that reports step 41 and loops from then on; a later attempt ends well at once. Each rank says where
/// it is when it is asked.
pub const HANGS_ONCE: &str = r#"trap 'echo "rank $RANK stands in a loop"' USR1
[ "$FIREFLYER_ATTEMPT" -gt 1 ] && exit 0
if [ "$RANK" = 0 ]; then
  echo '{"step":41}' > /run/fireflyer/progress.tmp
  mv /run/fireflyer/progress.tmp /run/fireflyer/progress.json
fi
while :; do sleep 0.2; done"#;

/// Like [`RUNS_UNTIL_ASKED`], but takes a step a second, from the one after that it resumes.
pub const COUNTS: &str = r#"trap '' TERM
i=${FIREFLYER_RESUME##*step-}; i=$((${i:--1}+1))
while [ ! -e /run/fireflyer/stop ]; do echo step $i; i=$((i+1)); sleep 1; done
if [ "$RANK" = 0 ]; then
  printf '{"attempt":%s,"step":%s,"digest":"sha256:%064d"}' "$FIREFLYER_ATTEMPT" $((i-1)) 7 > /run/fireflyer/ack.tmp
  mv /run/fireflyer/ack.tmp /run/fireflyer/ack.json
fi"#;

/// Like [`RUNS_UNTIL_ASKED`], but ends well once it was resumed from a checkpoint.
pub const ENDS_WHEN_RESUMED: &str = r#"trap '' TERM
[ -n "$FIREFLYER_RESUME" ] && exit 0
while [ ! -e /run/fireflyer/stop ]; do sleep 0.2; done
if [ "$RANK" = 0 ]; then
  printf '{"attempt":%s,"step":7,"digest":"sha256:%064d"}' "$FIREFLYER_ATTEMPT" 7 > /run/fireflyer/ack.tmp
  mv /run/fireflyer/ack.tmp /run/fireflyer/ack.json
fi"#;

/// Builds one TrainingJob, starting from the smallest legal one.
#[derive(Clone, Debug)]
pub struct TestJob {
    spec: Value,
    name: String,
}

impl TestJob {
    /// A job of `nodes` nodes whose trainer is a shell script in the busybox image.
    pub fn shell(name: &str, nodes: u32, script: &str) -> Self {
        let spec = json!({
            "nodes": nodes,
            "procsPerNode": 1,
            "template": {"spec": {"containers": [{
                "name": "trainer",
                "image": format!("localhost/fireflyer/busybox:{VERSION}"),
                "command": ["/bin/sh", "-c", script],
            }]}},
        });
        Self {
            spec,
            name: name.to_owned(),
        }
    }

    /// The digits example with extra arguments; `name` is also its checkpoint folder.
    pub fn digits(name: &str, nodes: u32, procs: u32, arguments: &[&str]) -> Self {
        let mut command = vec!["python3", "/opt/fireflyer/examples/digits.py"];
        command.extend(arguments);
        let spec = json!({
            "nodes": nodes,
            "procsPerNode": procs,
            "template": {"spec": {"containers": [{
                "name": "trainer",
                "image": format!("localhost/fireflyer/trainer:{VERSION}"),
                "command": command,
            }]}},
        });
        Self {
            spec,
            name: name.to_owned(),
        }
    }

    /// Sets any field of the spec.
    #[must_use]
    pub fn with(mut self, field: &str, value: Value) -> Self {
        self.spec[field] = value;
        self
    }

    /// Saves checkpoints into `claim` each `interval_seconds`.
    #[must_use]
    pub fn checkpoint(self, claim: &str, interval_seconds: u32) -> Self {
        self.with(
            "checkpoint",
            json!({"claimName": claim, "intervalSeconds": interval_seconds}),
        )
    }

    /// Replaces the trainer's command.
    #[must_use]
    pub fn program(mut self, program: &[&str], arguments: &[&str]) -> Self {
        self.spec["template"]["spec"]["containers"][0]["command"] =
            json!([program, arguments].concat());
        self
    }

    /// Replaces the trainer's image.
    #[must_use]
    pub fn image(mut self, image: &str) -> Self {
        self.spec["template"]["spec"]["containers"][0]["image"] = json!(image);
        self
    }

    /// Adds a container in which a script must end before the next one, or the trainer, starts. The
    /// first is called `init`, the next `init-1`.
    #[must_use]
    pub fn init(mut self, script: &str) -> Self {
        let list = &mut self.spec["template"]["spec"]["initContainers"];
        let mut all = list.as_array().cloned().unwrap_or_default();
        let name = match all.len() {
            0 => "init".to_owned(),
            others => format!("init-{others}"),
        };
        all.push(json!({
            "name": name,
            "image": format!("localhost/fireflyer/busybox:{VERSION}"),
            "command": ["/bin/sh", "-c", script],
        }));
        *list = json!(all);
        self
    }

    /// Gives the trainer what the restricted pod security level asks for.
    #[must_use]
    pub fn restricted(mut self) -> Self {
        self.spec["template"]["spec"]["containers"][0]["securityContext"] = json!({
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": true,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        });
        self
    }

    /// The object to create.
    pub fn object(&self) -> Value {
        json!({
            "apiVersion": "fireflyer.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": self.name},
            "spec": self.spec,
        })
    }

    /// Name of the job.
    pub fn name(&self) -> &str {
        &self.name
    }
}
