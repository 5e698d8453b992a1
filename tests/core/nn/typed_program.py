"""A user's program, which mypy checks: wrong names are errors, and a comment that ignores none is an error, too."""

import numpy as np

import dsinga
from dsinga import extensions, nn


def program() -> None:
    """Use models rightly and wrongly; never run."""
    model = nn.Sequential([nn.Input(4), nn.Dense(2)])
    x, y = np.zeros((8, 4), np.float32), np.zeros(8, int)
    model.fit(x, y, epochs=1, checkpoint_freq=10, progress=False)
    model.job(x, y, skip_bad_batches=True)
    nn.layers.Dense(2, activation="relu")
    nn.layers.Dense(unitss=2)  # type: ignore[call-arg]
    nn.callbacks.EarlyStopping("val_loss")
    extensions.EarlyStoping()  # type: ignore[attr-defined]
    model.compile(nn.optimizers.Adam(0.1), nn.losses.MeanSquaredError(), metrics=[nn.metrics.AUC()])
    model.fitt(x, y)  # type: ignore[attr-defined]
    model.fit(x, y, epoch=1)  # type: ignore[call-arg]
    model.job(x, y, checkpoint_freqq=1)  # type: ignore[call-arg]
    nn.load_model("folder").predictt(x)  # type: ignore[attr-defined]
    nn.Dense(2).trainble = False  # type: ignore[attr-defined]
    dsinga.trian("job.conf")  # type: ignore[attr-defined]
    dsinga.nn.Dense(unitss=3)  # type: ignore[call-arg]
    nn.Dnese(3)  # type: ignore[attr-defined]
    nn.CTCLoss()
    model.add_lora(rank=4, layers="dense")
    model.add_lora(rnk=4)  # type: ignore[call-arg]
    model.save_lora("lora.safetensors")
    model.save_lora()  # type: ignore[call-arg]
    model.merge_lora(4)  # type: ignore[call-arg]
    model.export("net.onnx", opset="21")  # type: ignore[arg-type]
    nn.load_onnx("net.onnx").export("net.onnx", check=x)
    nn.Conv2D(8, 3, strides=2, padding="same", name="conv", trainable=False)
    nn.Conv2D(8, 3, stride=2)  # type: ignore[call-arg]
    nn.LSTM(8, return_sequences=True, carry=True)
    nn.LSTM(8, return_sequence=True)  # type: ignore[call-arg]
    nn.Embedding(100, 8, mask_zero=True, partition_dim=1)
    nn.Embedding(100)  # type: ignore[call-arg]
    nn.Dropout("0.5")  # type: ignore[arg-type]
    nn.MaxPooling2D(pool_size=(2, 2), strides=2)
    nn.MultiHeadAttention(2, key_dim=8)
    nn.Reshape((2, 3), location=0)
    nn.LayerNormalization(axes=-1)  # type: ignore[call-arg]
    nn.SoftmaxLoss(topk=5, label_smoothing=0.1, name="loss")
    nn.SoftmaxLoss(top_k=5)  # type: ignore[call-arg]
    nn.Adam(nn.CosineDecay(0.1, 100, warmup_steps=10), weight_decay=0.1, clip_norm=1.0)
    nn.Adam(0.1, beta1=0.9)  # type: ignore[call-arg]
    nn.Cluster(workers=2, staleness=1, nworkers=2)  # type: ignore[call-arg]
    print(model.evaluate(x, y)["loss"] + 1.0)
    windows = dsinga.windows("weather.zarr", inputs="t", targets="t", input_dims={"time": 1}, leads=2)
    model.evaluate(windows, by=("variable", "lead"), against="persistence").rmse.sel(forecast="model")
    model.evaluate(windows, against="persistence").to_zarr("errors.zarr")
    loss, accuracy = model.evaluate(x, y)
    model.evaluate(windows).rmse.sel(forecast="model")  # type: ignore[attr-defined]
    model.evaluate(windows, by=3)  # type: ignore[call-overload]
    model.evaluate(x, y, by="lead")  # type: ignore[call-overload]
