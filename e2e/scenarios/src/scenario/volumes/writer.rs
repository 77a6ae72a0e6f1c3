//! Who writes to a volume while something breaks, and looks at what is left.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{TARGETS, in_data, with_label};
use crate::context::Context;
use crate::pods::Pods;
use crate::scenario::START;

/// Writes files whose content follows from their number, and prints each number once the file is durable and has its
/// name: until there is a file `stop`. So many a second at most that all of them are looked at soon, however fast the disk is.
pub(super) const WRITES: &str = r#"set -e
i=0
while [ ! -e stop ]; do
  i=$((i+1))
  seq $i $((i+9999)) > /tmp/part
  dd if=/tmp/part of=new bs=16k conv=fsync 2> /dev/null
  mv new $i
  echo $i
  sleep 0.1
done"#;

/// Looks whether all files up to the last one are there, whole, and no others. Prints each as it was read: if it takes too
/// long, its log says where it stood.
pub(super) const CHECKS: &str = r#"last=$(ls | grep -c '^[0-9]*$')
for i in $(seq 1 $last); do
  [ "$(seq $i $((i+9999)) | md5sum)" = "$(md5sum < $i)" ] || { echo file $i of $last is wrong; exit 1; }
  echo $i
done
echo $last files are right"#;

/// A pod that writes for as long as a scenario wants.
pub(super) struct Writer<'a> {
    context: &'a Context,
    pub(super) pods: Pods<'a>,
    /// Another node.
    pub(super) reader: String,
}

const WRITER: &str = "writer";

impl<'a> Writer<'a> {
    /// On a node without replicas where there is one.
    pub(super) async fn start(context: &'a Context) -> Result<Self> {
        let targets = with_label(context, TARGETS).await?;
        let names = context.cluster.nodes().map(|node| node.name());
        let (with, without): (Vec<_>, Vec<_>) =
            names.partition(|name| targets.iter().any(|node| node == name));
        let mut nodes = without.into_iter().chain(with).cycle();
        let (Some(node), Some(reader)) = (nodes.next(), nodes.next()) else {
            anyhow::bail!("the cluster has no nodes");
        };
        context.volume("written").await?;
        let pods = Pods::of(context);
        pods.create(Pods::on_claim(WRITER, &in_data(WRITES), "written", node))
            .await?;
        let writer = Self {
            context,
            pods,
            reader: reader.to_owned(),
        };
        writer.goes_on(START).await?;
        Ok(writer)
    }

    /// The last file that is durable and has its name.
    pub(super) async fn last(&self) -> Result<u64> {
        let log = self.pods.log(WRITER).await?;
        let last = log.lines().next_back().unwrap_or("0");
        last.parse()
            .with_context(|| format!("the writer printed {last:?}"))
    }

    /// Waits until three more files are written.
    pub(super) async fn goes_on(&self, limit: Duration) -> Result<()> {
        let before = self.last().await.unwrap_or(0);
        let look = || async { Ok((self.last().await? >= before + 3).then_some(())) };
        self.context.eventually("writes go on", limit, look).await
    }

    /// Stops it, and looks at all that it wrote from another node.
    pub(super) async fn ends_with_all(self) -> Result<()> {
        // The writer's end may come first, and end this, too.
        self.pods.exec(WRITER, &in_data("touch stop")).await.ok();
        self.pods.ends_well(WRITER, START).await?;
        let last = self.last().await?;
        let checks = Pods::on_claim("checker", &in_data(CHECKS), "written", &self.reader);
        let said = self.pods.runs(checks, START).await?;
        let said = said.lines().next_back();
        ensure!(
            said == Some(format!("{last} files are right").as_str()),
            "{last} files were acknowledged, another node says {said:?}"
        );
        Ok(())
    }
}
