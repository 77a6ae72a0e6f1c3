//! The service Controller: makes and deletes volumes. What can be promised is the store's to say.

use std::collections::BTreeMap;
use std::sync::Arc;

use tonic::{Request, Response, Status};
use tracing::info;

use crate::capability::parse_all;
use crate::error::{CsiError, answer, needed};
use crate::pb::csi::controller_server::Controller;
use crate::pb::csi::controller_service_capability::rpc::Type as Rpc;
use crate::pb::csi::controller_service_capability::{self, Type};
use crate::pb::csi::validate_volume_capabilities_response::Confirmed;
use crate::pb::csi::{
    ControllerGetCapabilitiesResponse, ControllerServiceCapability, CreateVolumeRequest,
    CreateVolumeResponse, DeleteVolumeRequest, Empty, GetCapacityRequest, GetCapacityResponse,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume,
};
use crate::size::WantedSize;
use crate::volume_store::{VolumeError, VolumeRecord, WantedVolume};
use crate::{VolumeRoot, VolumeStore};

/// The interface's limit on texts.
const NAME_LIMIT_BYTES: usize = 128;

/// What this service does. The last one is what lets csi-provisioner take ReadWriteOncePod.
const OFFERED: [Rpc; 3] = [
    Rpc::CreateDeleteVolume,
    Rpc::GetCapacity,
    Rpc::SingleNodeMultiWriter,
];

const SNAPSHOTS: CsiError = CsiError::NotOffered {
    what: "snapshots",
    instead: "copy the files to another volume",
};
const EXPANSION: CsiError = CsiError::NotOffered {
    what: "larger sizes of a volume that exists",
    instead: "make a larger volume and copy the files",
};
const MODIFICATION: CsiError = CsiError::NotOffered {
    what: "changes of a volume that exists",
    instead: "make another volume and copy the files",
};
const CONTENT: CsiError = CsiError::NotEmpty {
    what: "the content of a snapshot or another volume",
    instead: "leave out dataSource, and copy the files",
};
const ATTRIBUTES: CsiError = CsiError::NotEmpty {
    what: "the parameters of a VolumeAttributesClass",
    instead: "leave out volumeAttributesClassName",
};

#[derive(Debug)]
pub(crate) struct ControllerService<S>(pub(crate) Arc<S>);

impl<S: VolumeStore> ControllerService<S> {
    async fn create(&self, request: CreateVolumeRequest) -> Result<Volume, CsiError> {
        let name = needed("name", &request.name)?;
        if name.len() > NAME_LIMIT_BYTES || name.chars().any(char::is_control) {
            let name = name.to_owned();
            return Err(CsiError::Name { name });
        }
        parse_all(&request.volume_capabilities)?;
        if request.volume_content_source.is_some() {
            return Err(CONTENT);
        }
        if !request.mutable_parameters.is_empty() {
            return Err(ATTRIBUTES);
        }
        let size = WantedSize::parse(request.capacity_range)?;
        let wanted = WantedVolume {
            bytes: size.bytes(),
            root: VolumeRoot::parse(&request.parameters)?,
        };
        let VolumeRecord { id, bytes, root } = match self.0.create(name, wanted).await {
            Ok(record) => record,
            Err(VolumeError::Exists(there))
                if there.root == wanted.root && size.allows(there.bytes) =>
            {
                there
            }
            Err(VolumeError::Exists(there)) => {
                let name = name.to_owned();
                return Err(CsiError::Exists {
                    name,
                    there,
                    wanted,
                });
            }
            Err(VolumeError::NoRoom(capacity)) => {
                let bytes = wanted.bytes;
                return Err(CsiError::NoRoom { bytes, capacity });
            }
            Err(VolumeError::Unavailable(error)) => return Err(CsiError::Store(error)),
        };
        info!(volume = id, name, bytes, %root, "a volume is there");
        Ok(Volume {
            capacity_bytes: signed(bytes),
            volume_id: id,
        })
    }

    async fn delete(&self, request: DeleteVolumeRequest) -> Result<Empty, CsiError> {
        let id = needed("volume_id", &request.volume_id)?;
        self.0.delete(id).await.map_err(CsiError::Store)?;
        info!(volume = id, "a volume is deleted");
        Ok(Empty {})
    }

    async fn validate(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, CsiError> {
        let ValidateVolumeCapabilitiesRequest {
            volume_id,
            volume_context,
            volume_capabilities,
            parameters,
            mutable_parameters,
        } = request;
        let id = needed("volume_id", &volume_id)?;
        if volume_capabilities.is_empty() {
            let field = "volume_capabilities";
            return Err(CsiError::Missing { field });
        }
        let found = self.0.get(id).await.map_err(CsiError::Store)?;
        let volume = found.ok_or_else(|| CsiError::NoSuchVolume { id: id.to_owned() })?;
        let refused = if !mutable_parameters.is_empty() {
            Some(ATTRIBUTES.to_string())
        } else if !volume_context.is_empty() {
            Some("volumes of this driver have no volume_context".to_owned())
        } else if let Err(error) = parse_all(&volume_capabilities) {
            Some(error.to_string())
        } else {
            differs(&volume, &parameters)
        };
        Ok(match refused {
            Some(message) => ValidateVolumeCapabilitiesResponse {
                confirmed: None,
                message,
            },
            None => ValidateVolumeCapabilitiesResponse {
                confirmed: Some(Confirmed {
                    volume_capabilities,
                    parameters,
                }),
                message: String::new(),
            },
        })
    }

    async fn capacity(&self, request: GetCapacityRequest) -> Result<GetCapacityResponse, CsiError> {
        // A class that no volume can be made of has no capacity to speak of.
        VolumeRoot::parse(&request.parameters)?;
        if !request.volume_capabilities.is_empty() {
            parse_all(&request.volume_capabilities)?;
        }
        let capacity = self.0.capacity().await.map_err(CsiError::Store)?;
        Ok(GetCapacityResponse {
            available_capacity: signed(capacity.left_bytes()),
        })
    }
}

/// What a volume that is there has otherwise than parameters say, if they say anything.
fn differs(volume: &VolumeRecord, parameters: &BTreeMap<String, String>) -> Option<String> {
    if parameters.is_empty() {
        return None;
    }
    match VolumeRoot::parse(parameters) {
        Ok(root) if root == volume.root => None,
        Ok(root) => Some(format!("the volume has {}, not {root}", volume.root)),
        Err(error) => Some(error.to_string()),
    }
}

/// As the interface counts bytes.
pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[tonic::async_trait]
impl<S: VolumeStore> Controller for ControllerService<S> {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let created = self.create(request.into_inner()).await;
        let created = created.map(|volume| CreateVolumeResponse {
            volume: Some(volume),
        });
        answer("CreateVolume", created)
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<Empty>, Status> {
        answer("DeleteVolume", self.delete(request.into_inner()).await)
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let validated = self.validate(request.into_inner()).await;
        answer("ValidateVolumeCapabilities", validated)
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        answer("GetCapacity", self.capacity(request.into_inner()).await)
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let capability = |offered: Rpc| ControllerServiceCapability {
            r#type: Some(Type::Rpc(controller_service_capability::Rpc {
                r#type: offered.into(),
            })),
        };
        Ok(Response::new(ControllerGetCapabilitiesResponse {
            capabilities: OFFERED.map(capability).to_vec(),
        }))
    }

    async fn create_snapshot(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        answer("CreateSnapshot", Err(SNAPSHOTS))
    }

    async fn controller_expand_volume(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        answer("ControllerExpandVolume", Err(EXPANSION))
    }

    async fn controller_modify_volume(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        answer("ControllerModifyVolume", Err(MODIFICATION))
    }
}
