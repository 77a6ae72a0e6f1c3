//! The steps of staging and publishing. A call says that it is done only when the volume is mounted
//! and this process serves it; each can be repeated from wherever it, or the process, has ended.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::info;

use super::blocking;
use super::folders::{self, MountedVolume};
use crate::Mounter;
use crate::error::CsiError;

/// A volume in the folder of a pod.
#[derive(Debug)]
pub(super) struct Publication {
    pub(super) id: String,
    pub(super) staging: PathBuf,
    pub(super) target: PathBuf,
    /// Nobody on the node writes.
    pub(super) is_staged_read_only: bool,
    /// The pod does not write.
    pub(super) is_read_only: bool,
    /// No other pod of the node may have it.
    pub(super) is_alone: bool,
}

#[derive(Debug)]
pub(super) struct VolumeMounts<M> {
    mounter: Arc<M>,
}

impl<M> Clone for VolumeMounts<M> {
    fn clone(&self) -> Self {
        let mounter = Arc::clone(&self.mounter);
        Self { mounter }
    }
}

impl<M: Mounter> VolumeMounts<M> {
    pub(super) fn new(mounter: Arc<M>) -> Self {
        Self { mounter }
    }

    fn at(&self, id: &str, folder: &Path) -> MountedAt<M> {
        MountedAt {
            mounter: Arc::clone(&self.mounter),
            id: id.to_owned(),
            folder: folder.to_owned(),
        }
    }

    /// Has the volume mounted at a folder. A dead mount is replaced.
    pub(super) async fn stage(
        &self,
        id: &str,
        staging: &Path,
        is_read_only: bool,
    ) -> Result<(), CsiError> {
        let at = self.at(id, staging);
        let is_there = blocking(move || match at.look()? {
            MountedVolume::Live => at.check(is_read_only).map(|()| true),
            MountedVolume::Dead => {
                info!(volume = at.id, folder = %at.folder.display(), "replacing a dead mount");
                Ok(false)
            }
            MountedVolume::Nothing => Ok(false),
        });
        if is_there.await? {
            return Ok(());
        }
        self.take_away(id, staging).await?;
        let at = self.at(id, staging);
        blocking(move || folders::make(&at.folder)).await?;
        let mounted = self.mounter.mount(id, staging, is_read_only).await;
        mounted.map_err(|error| CsiError::of_mounter(error, "mount", id, staging.to_owned()))?;
        let at = self.at(id, staging);
        blocking(move || at.check(is_read_only)).await?;
        info!(volume = id, folder = %staging.display(), is_read_only, "staged a volume");
        Ok(())
    }

    /// Has no mount at a folder, and removes it if it is empty.
    pub(super) async fn unstage(&self, id: &str, staging: &Path) -> Result<(), CsiError> {
        self.take_away(id, staging).await?;
        let at = self.at(id, staging);
        blocking(move || folders::remove(&at.folder)).await?;
        info!(volume = id, folder = %staging.display(), "unstaged a volume");
        Ok(())
    }

    /// Has the staged volume mounted in the folder of a pod. If it is not staged, or not any more,
    /// it is staged first: a kubelet does not do so again while another pod of the node has it.
    pub(super) async fn publish(&self, publication: Publication) -> Result<(), CsiError> {
        let Publication {
            id,
            staging,
            target,
            is_staged_read_only,
            ..
        } = &publication;
        self.stage(id, staging, *is_staged_read_only).await?;
        let at = self.at(id, target);
        blocking(move || publish(&publication, &at)).await
    }

    /// Has no mount in the folder of a pod, and removes it if it is empty.
    pub(super) async fn unpublish(&self, id: &str, target: &Path) -> Result<(), CsiError> {
        let at = self.at(id, target);
        blocking(move || {
            at.unmount()?;
            folders::remove(&at.folder)
        })
        .await?;
        info!(volume = id, folder = %target.display(), "unpublished a volume");
        Ok(())
    }

    /// Has the mounter unmount a volume, and unmounts what the mounter does not know of.
    async fn take_away(&self, id: &str, staging: &Path) -> Result<(), CsiError> {
        let at = self.at(id, staging);
        // What is somebody else's is refused before the mounter unmounts anything.
        blocking(move || at.look()).await?;
        let unmounted = self.mounter.unmount(id, staging).await;
        unmounted
            .map_err(|error| CsiError::of_mounter(error, "unmount", id, staging.to_owned()))?;
        let at = self.at(id, staging);
        blocking(move || at.unmount()).await
    }
}

/// Of a volume that is staged.
fn publish<M: Mounter>(publication: &Publication, at: &MountedAt<M>) -> Result<(), CsiError> {
    let Publication {
        id,
        staging,
        target,
        is_staged_read_only: _,
        is_read_only,
        is_alone,
    } = publication;
    if *is_alone {
        check_alone(id, staging, target)?;
    }
    match at.look()? {
        MountedVolume::Live => {
            if *is_read_only && !folders::is_read_only(target)? {
                // A call before has ended between its two steps.
                folders::forbid_writing(target)?;
            }
            return at.check(*is_read_only);
        }
        MountedVolume::Dead => at.unmount()?,
        MountedVolume::Nothing => {}
    }
    folders::make(target)?;
    folders::bind(staging, target, *is_read_only)?;
    at.check(*is_read_only)?;
    info!(volume = id, folder = %target.display(), is_read_only, "published a volume");
    Ok(())
}

/// Whether the volume is in the folder of no other pod.
fn check_alone(id: &str, staging: &Path, target: &Path) -> Result<(), CsiError> {
    let table = fuse::mount::table()?;
    let other = table.into_iter().find(|entry| {
        let is_this = [staging, target].contains(&entry.folder.as_path());
        entry.is_ours() && entry.source == id && !is_this
    });
    match other {
        None => Ok(()),
        Some(entry) => Err(CsiError::SingleWriter {
            id: id.to_owned(),
            folder: entry.folder,
        }),
    }
}

/// A volume, and where it should be.
#[derive(Debug)]
struct MountedAt<M> {
    mounter: Arc<M>,
    id: String,
    folder: PathBuf,
}

impl<M: Mounter> MountedAt<M> {
    fn look(&self) -> Result<MountedVolume, CsiError> {
        folders::look(&*self.mounter, &self.folder, &self.id)
    }

    fn unmount(&self) -> Result<(), CsiError> {
        folders::unmount(&*self.mounter, &self.folder, &self.id)
    }

    /// An error unless the volume is there, is served, and can be written or not as is wanted.
    fn check(&self, is_read_only: bool) -> Result<(), CsiError> {
        let Self { id, folder, .. } = self;
        match self.look()? {
            MountedVolume::Live if folders::is_read_only(folder)? == is_read_only => Ok(()),
            MountedVolume::Live => Err(CsiError::Incompatible {
                id: id.clone(),
                folder: folder.clone(),
                is_read_only: !is_read_only,
            }),
            MountedVolume::Nothing | MountedVolume::Dead => Err(CsiError::Unavailable {
                id: id.clone(),
                folder: folder.clone(),
                why: "the mount ended at once; call again".to_owned(),
            }),
        }
    }
}
