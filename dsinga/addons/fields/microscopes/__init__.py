"""Images of microscopes: OME-Zarr read and written, targets made from label images, instances made from predictions."""
