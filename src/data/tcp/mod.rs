//! The built-in data transport: plain TCP, straight from and into the regions.
