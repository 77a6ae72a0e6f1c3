//! Answers the calls. What a handle wrote before a truncation is looked up in the chunks.

use std::sync::Arc;

use metadata::{
    Errno, InodeNumber, MetaAnswer, MetaOperation, MetaRequest, MountId, Written, step,
};
use storage_rpc::pb::meta::metadata_server::Metadata;
use storage_rpc::pb::meta::{CallRequest, CallResponse, EndMountRequest, EndMountResponse};
use tonic::{Request, Response, Status};

use crate::chunks::FileChunks;
use crate::ending::Ender;
use crate::room::NameRoom;
use crate::runner::{Fresh, StepRunner};

/// How often a length is looked up before somebody else has cut it off again.
const MOST_CUTS: u32 = 8;

pub(crate) struct Service<C> {
    runner: StepRunner,
    chunks: Arc<C>,
    ender: Ender<C>,
    room: NameRoom,
}

impl<C> Service<C> {
    pub(crate) fn new(runner: StepRunner, chunks: Arc<C>, ender: Ender<C>, room: NameRoom) -> Self {
        Self {
            runner,
            chunks,
            ender,
            room,
        }
    }
}

#[tonic::async_trait]
impl<C: FileChunks> Metadata for Service<C> {
    async fn call(&self, request: Request<CallRequest>) -> Result<Response<CallResponse>, Status> {
        let request: MetaRequest = serde_json::from_slice(&request.into_inner().request)
            .map_err(|error| Status::invalid_argument(format!("failed to read it: {error}")))?;
        self.room.check(&request)?;
        let answer = answer(&self.runner, self.chunks.as_ref(), request).await?;
        let answer = serde_json::to_vec(&answer)
            .map_err(|error| Status::internal(format!("failed to write an answer: {error}")))?;
        Ok(Response::new(CallResponse { answer }))
    }

    async fn end_mount(
        &self,
        request: Request<EndMountRequest>,
    ) -> Result<Response<EndMountResponse>, Status> {
        let mount = MountId(request.into_inner().mount);
        // It goes on when its caller is gone: what was begun to be cut off is cut off by nobody else.
        let ender = self.ender.clone();
        let ended = tokio::spawn(async move { ender.end(mount).await }).await;
        let ended = ended.map_err(|error| Status::internal(error.to_string()))?;
        match ended? {
            0 => Ok(Response::new(EndMountResponse {})),
            left => Err(Status::unavailable(format!(
                "{left} of its handles could not be closed yet: their chunks cannot be reached"
            ))),
        }
    }
}

/// Does an operation.
pub(crate) async fn answer(
    runner: &StepRunner,
    chunks: &impl FileChunks,
    mut request: MetaRequest,
) -> Result<MetaAnswer, Status> {
    let fresh = match request.operation.makes_inode() {
        true => Fresh::Needed,
        false => Fresh::NotNeeded,
    };
    for _ in 0..MOST_CUTS {
        let answer = runner
            .run(fresh, |given, seen| step(&request, given, seen))
            .await?;
        let Err(Errno::Cut {
            cut,
            size,
            bound,
            layout,
        }) = answer
        else {
            return Ok(answer);
        };
        let Some((inode, written)) = written(&mut request.operation) else {
            return Ok(answer);
        };
        let length = match size < bound {
            true => chunks.length(inode, layout, size..bound).await,
            false => Ok(0),
        };
        let length = length.map_err(|error| {
            Status::unavailable(format!("failed to look up how long {inode:?} is: {error}"))
        })?;
        written.length = length.min(bound);
        written.cut = cut;
    }
    Err(Status::unavailable("it is cut off again and again"))
}

/// What a sync or close says was written.
fn written(operation: &mut MetaOperation) -> Option<(InodeNumber, &mut Written)> {
    if let MetaOperation::Sync { inode, written, .. }
    | MetaOperation::Close {
        inode,
        written: Some(written),
        ..
    } = operation
    {
        return Some((*inode, written));
    }
    None
}
