//! Pictures for models: small enough for every client, and safe for the server.
//!
//! A picture that fits is sent unchanged. A larger one is shrunk. Its size in pixels is read from its header before
//! anything is decoded, large PNGs are averaged down row by row, and only one picture is decoded at a time. So a
//! hostile picture costs at most a few tens of megabytes and some processor time.

use std::io::Cursor;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use image::codecs::jpeg::JpegEncoder;
use image::{DynamicImage, ImageFormat, ImageReader, RgbImage, RgbaImage};
use tokio::sync::Semaphore;

use crate::limits::{PICTURE_BYTES, PICTURE_SIDE};

/// The maximum pixels of a picture. Larger pictures are not decoded.
const MAX_PIXELS: u64 = 50_000_000;
/// The maximum pixels of a picture that is decoded at once. Larger PNG files without interlacing are decoded row by
/// row.
const MAX_DECODED_PIXELS: u64 = 4_000_000;
/// The maximum pixels of a JPEG file. It is higher, since JPEG files cannot be decoded row by row.
const MAX_JPEG_PIXELS: u64 = 16_000_000;
/// The longest side; bounds the memory of one row.
const MAX_SIDE: u32 = 65_535;
/// The maximum bytes that a decoder may allocate in addition to its output.
const DECODER_BYTES: usize = 64 << 20;
/// Attempts at an encoding that fits.
const MAX_ATTEMPTS: u32 = 6;
/// Bytes of the smallest room that is worth an attempt.
const LEAST_ROOM: usize = 4096;

static DECODER_PERMIT: Semaphore = Semaphore::const_new(1);

/// A picture ready for a content block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Picture {
    pub(crate) mime: &'static str,
    pub(crate) base64: String,
    /// True if it is smaller than the original.
    pub(crate) shrunk: bool,
}

/// The reasons for not showing a picture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PictureError {
    #[error("not a PNG or JPEG file")]
    NotAPicture,
    #[error("{0} x {1} pixels are too many to show")]
    TooManyPixels(u32, u32),
    #[error("it cannot be decoded")]
    Broken,
    #[error("no room is left in the result")]
    NoRoom,
}

/// Returns true if a file starts like a picture that can be shown.
pub(crate) fn is_picture(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x89PNG\r\n\x1a\n") || bytes.starts_with(&[0xff, 0xd8, 0xff])
}

/// Fits a picture into `room` bytes of base64.
pub(crate) async fn fit(bytes: Bytes, room: usize) -> Result<Picture, PictureError> {
    let room = room.min(PICTURE_BYTES);
    if room < LEAST_ROOM {
        return Err(PictureError::NoRoom);
    }
    // The semaphore is never closed; without it nothing is decoded.
    let _one = DECODER_PERMIT.acquire().await.map_err(|_| PictureError::Broken)?;
    tokio::task::spawn_blocking(move || fit_now(&bytes, room))
        .await
        .unwrap_or(Err(PictureError::Broken))
}

fn fit_now(bytes: &[u8], room: usize) -> Result<Picture, PictureError> {
    let (format, width, height) = header(bytes)?;
    if width.max(height) <= PICTURE_SIDE && encoded_len(bytes.len()) <= room {
        return Ok(picture(bytes, format, false));
    }
    let pixels = u64::from(width) * u64::from(height);
    if pixels > MAX_PIXELS || width.max(height) > MAX_SIDE {
        return Err(PictureError::TooManyPixels(width, height));
    }
    let whole = if format == ImageFormat::Jpeg {
        MAX_JPEG_PIXELS
    } else {
        MAX_DECODED_PIXELS
    };
    let decoded = if pixels <= whole {
        decode(bytes, format)?
    } else if format == ImageFormat::Png {
        average_rows(bytes)?.ok_or(PictureError::TooManyPixels(width, height))?
    } else {
        return Err(PictureError::TooManyPixels(width, height));
    };
    shrink(&decoded, room)
}

fn header(bytes: &[u8]) -> Result<(ImageFormat, u32, u32), PictureError> {
    if !is_picture(bytes) {
        return Err(PictureError::NotAPicture);
    }
    let reader = ImageReader::new(Cursor::new(bytes))
        .with_guessed_format()
        .map_err(|_| PictureError::NotAPicture)?;
    let format = reader.format().ok_or(PictureError::NotAPicture)?;
    let (width, height) = reader.into_dimensions().map_err(|_| PictureError::Broken)?;
    if width == 0 || height == 0 {
        return Err(PictureError::Broken);
    }
    Ok((format, width, height))
}

fn decode(bytes: &[u8], format: ImageFormat) -> Result<DynamicImage, PictureError> {
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut limits = image::Limits::default();
    limits.max_alloc = u64::try_from(2 * DECODER_BYTES).ok();
    reader.limits(limits);
    reader.decode().map_err(|_| PictureError::Broken)
}

/// Decodes a large PNG one row at a time into averages of square blocks, at least as large as can be shown. Returns
/// `None` for interlaced files, since their rows are not in order.
fn average_rows(bytes: &[u8]) -> Result<Option<DynamicImage>, PictureError> {
    let limits = png::Limits { bytes: DECODER_BYTES };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(|_| PictureError::Broken)?;
    if reader.info().interlaced {
        return Ok(None);
    }
    let (width, height) = (reader.info().width, reader.info().height);
    let channels = reader.output_color_type().0.samples();
    let factor = (width.max(height) / PICTURE_SIDE).max(1);
    let block = usize::try_from(factor).map_err(|_| PictureError::Broken)?;
    let (out_width, out_height) = (width.div_ceil(factor), height.div_ceil(factor));
    let columns = usize::try_from(out_width).map_err(|_| PictureError::Broken)?;
    let mut out = Vec::new();
    let mut sums = vec![PixelSum::default(); columns];
    let mut rows = 0;
    while let Some(row) = reader.next_row().map_err(|_| PictureError::Broken)? {
        for (sum, pixels) in sums.iter_mut().zip(row.data().chunks(block * channels)) {
            pixels.chunks_exact(channels).for_each(|pixel| sum.add(pixel));
        }
        rows += 1;
        if rows % block == 0 {
            out.extend(sums.iter_mut().flat_map(PixelSum::take));
        }
    }
    if rows % block != 0 {
        out.extend(sums.iter_mut().flat_map(PixelSum::take));
    }
    let averaged = RgbaImage::from_raw(out_width, out_height, out).ok_or(PictureError::Broken)?;
    Ok(Some(DynamicImage::ImageRgba8(averaged)))
}

/// The sum of a block's pixels, in red, green, blue and alpha. A block has at most 41 x 41 pixels.
#[derive(Debug, Clone, Copy, Default)]
struct PixelSum {
    rgba: [u32; 4],
    pixels: u32,
}

impl PixelSum {
    fn add(&mut self, pixel: &[u8]) {
        let rgba = match *pixel {
            [grey] => [grey, grey, grey, 255],
            [grey, alpha] => [grey, grey, grey, alpha],
            [red, green, blue] => [red, green, blue, 255],
            [red, green, blue, alpha] => [red, green, blue, alpha],
            _ => return,
        };
        for (sum, value) in self.rgba.iter_mut().zip(rgba) {
            *sum += u32::from(value);
        }
        self.pixels += 1;
    }

    fn take(&mut self) -> [u8; 4] {
        let sum = std::mem::take(self);
        sum.rgba
            .map(|value| u8::try_from(value / sum.pixels.max(1)).unwrap_or(u8::MAX))
    }
}

fn shrink(image: &DynamicImage, room: usize) -> Result<Picture, PictureError> {
    let mut side = PICTURE_SIDE.min(image.width().max(image.height()));
    for attempt in 0..MAX_ATTEMPTS {
        let small = if image.width().max(image.height()) > side {
            image.thumbnail(side, side)
        } else {
            image.clone()
        };
        // Flat pictures (plots) stay exact as PNG; photographs and noise do not get small that way.
        if attempt == 0 {
            let exact = write_png(&small)?;
            if encoded_len(exact.len()) <= room {
                return Ok(picture(&exact, ImageFormat::Png, true));
            }
        }
        let lossy = write_jpeg(&small)?;
        if encoded_len(lossy.len()) <= room {
            return Ok(picture(&lossy, ImageFormat::Jpeg, true));
        }
        side = (side * 7 / 10).max(1);
    }
    Err(PictureError::NoRoom)
}

fn write_png(image: &DynamicImage) -> Result<Vec<u8>, PictureError> {
    let mut out = Cursor::new(Vec::new());
    let image = if image.color().has_alpha() {
        DynamicImage::ImageRgba8(image.to_rgba8())
    } else {
        DynamicImage::ImageRgb8(image.to_rgb8())
    };
    image
        .write_to(&mut out, ImageFormat::Png)
        .map_err(|_| PictureError::Broken)?;
    Ok(out.into_inner())
}

fn write_jpeg(image: &DynamicImage) -> Result<Vec<u8>, PictureError> {
    let mut out = Vec::new();
    JpegEncoder::new_with_quality(&mut out, 82)
        .encode_image(&on_white(image))
        .map_err(|_| PictureError::Broken)?;
    Ok(out)
}

/// Puts a picture on white. JPEG has no transparency, and plots with a transparent background are meant for white
/// paper.
fn on_white(image: &DynamicImage) -> RgbImage {
    if !image.color().has_alpha() {
        return image.to_rgb8();
    }
    let rgba = image.to_rgba8();
    RgbImage::from_fn(rgba.width(), rgba.height(), |x, y| {
        let [red, green, blue, alpha] = rgba.get_pixel(x, y).0;
        image::Rgb([red, green, blue].map(|value| {
            let mixed = (u32::from(value) * u32::from(alpha) + 255 * (255 - u32::from(alpha))) / 255;
            u8::try_from(mixed).unwrap_or(u8::MAX)
        }))
    })
}

fn picture(bytes: &[u8], format: ImageFormat, shrunk: bool) -> Picture {
    Picture {
        mime: if format == ImageFormat::Jpeg {
            "image/jpeg"
        } else {
            "image/png"
        },
        base64: STANDARD.encode(bytes),
        shrunk,
    }
}

/// Returns the base64 length of this number of bytes.
fn encoded_len(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A PNG of one colour, or of noise that does not compress.
    pub(crate) fn png_file(width: u32, height: u32, noise: bool) -> Bytes {
        let mut state = 1_u32;
        let image = RgbImage::from_fn(width, height, |_, _| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            if noise {
                image::Rgb(state.to_le_bytes()[..3].try_into().unwrap())
            } else {
                image::Rgb([200, 30, 30])
            }
        });
        let mut out = Cursor::new(Vec::new());
        image.write_to(&mut out, ImageFormat::Png).unwrap();
        out.into_inner().into()
    }

    fn decoded(picture: &Picture) -> DynamicImage {
        image::load_from_memory(&STANDARD.decode(&picture.base64).unwrap()).unwrap()
    }

    #[tokio::test]
    async fn a_small_picture_is_sent_unchanged() {
        let bytes = png_file(300, 200, false);
        let picture = fit(bytes.clone(), PICTURE_BYTES).await.unwrap();
        assert_eq!(picture.base64, STANDARD.encode(&bytes));
        assert!(!picture.shrunk);
    }

    #[tokio::test]
    async fn a_wide_picture_is_shrunk_to_what_models_can_take() {
        let picture = fit(png_file(2000, 500, false), PICTURE_BYTES).await.unwrap();
        assert!(picture.shrunk);
        let image = decoded(&picture);
        assert_eq!((image.width(), image.height()), (1568, 392));
        assert_eq!(image.to_rgb8().get_pixel(700, 100).0, [200, 30, 30]);
    }

    #[tokio::test]
    async fn noise_is_shrunk_until_it_fits_the_room() {
        let picture = fit(png_file(600, 600, true), 60_000).await.unwrap();
        assert!(picture.base64.len() <= 60_000);
        assert_eq!(picture.mime, "image/jpeg");
    }

    #[test]
    fn a_large_picture_is_averaged_row_by_row_with_its_colours_kept() {
        let averaged = average_rows(&png_file(3500, 1201, false)).unwrap().unwrap();
        assert_eq!((averaged.width(), averaged.height()), (1750, 601));
        assert_eq!(averaged.to_rgba8().get_pixel(1749, 600).0, [200, 30, 30, 255]);
    }

    #[tokio::test]
    async fn a_bomb_is_refused_by_its_header() {
        let mut bomb = png_file(1, 1, false).to_vec();
        bomb[16..24].copy_from_slice(&[0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff]);
        let crc = crc32(&bomb[12..29]);
        bomb[29..33].copy_from_slice(&crc.to_be_bytes());
        assert_eq!(
            fit(bomb.into(), PICTURE_BYTES).await,
            Err(PictureError::TooManyPixels(65535, 65535))
        );
    }

    #[tokio::test]
    async fn non_pictures_are_refused() {
        assert_eq!(
            fit(Bytes::from_static(b"GIF89a"), PICTURE_BYTES).await,
            Err(PictureError::NotAPicture)
        );
        let cut = png_file(2000, 2000, true).slice(..5000);
        assert_eq!(fit(cut, PICTURE_BYTES).await, Err(PictureError::Broken));
        assert_eq!(fit(png_file(2, 2, false), 10).await, Err(PictureError::NoRoom));
    }

    fn crc32(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
            })
        })
    }
}
