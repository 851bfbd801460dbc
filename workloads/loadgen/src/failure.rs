//! Why the program ends without a result.

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Wrong usage: what, where, what to do.
    #[error("{0}")]
    Usage(String),
    /// The service, or the generator to control, is not there.
    #[error("{0}")]
    Unreachable(String),
    /// The kernel refused something that the generator cannot do without, or the report cannot be written.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

impl Failure {
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Unreachable(_) | Self::System(_) => 1,
        }
    }
}
