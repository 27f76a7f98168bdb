"""DINOv2's vision transformer, for images of any size; its patch tokens are maps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, DEPTH, HEADS, PATCH, GRID = 384, 12, 6, 14, 37  # of ViT-S/14; its position embedding is that of 518 pixels


class Attention(nn.Module):
    """softmax(q kᵀ / √d) v over all tokens, in several heads of width d."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, N, C) → (B, N, C)."""
        query, key, value = self.qkv(tokens).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """Two linear layers with a GELU between them, for each token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, 4 * WIDTH)
        self.fc2 = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, N, C) → (B, N, C)."""
        return self.fc2(functional.gelu(self.fc1(tokens)))


class Scale(nn.Module):
    """A learned factor for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, N, C) → (B, N, C)."""
        return tokens * self.gamma


class Block(nn.Module):
    """x ← x + γ₁ attention(norm(x)); x ← x + γ₂ mlp(norm(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
        self.attn, self.mlp = Attention(), Mlp()
        self.ls1, self.ls2 = Scale(), Scale()

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, N, C) → (B, N, C), the residual stream after this block."""
        tokens = tokens + self.ls1(self.attn(self.norm1(tokens)))
        return tokens + self.ls2(self.mlp(self.norm2(tokens)))


class PatchEmbedding(nn.Module):
    """One token for each patch of 14 × 14 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, WIDTH, PATCH, PATCH)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, 3, S, S) → tokens (B, C, S / 14, S / 14)."""
        return self.proj(images)


class VisionTransformer(nn.Module):
    """ViT-S/14 with the names of tensors that its authors and timm use."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + GRID**2, WIDTH))
        self.patch_embed = PatchEmbedding()
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-6)

    def forward(self, images: Tensor, layers: Sequence[str]) -> dict[str, Tensor]:
        """Images (B, 3, S, S) → patch tokens (B, C, S / 14, S / 14) after each layer; later blocks are not computed."""
        patches = self.patch_embed(images)
        grid = patches.shape[2:]
        tokens = torch.cat([self.cls_token.expand(len(images), -1, -1), patches.flatten(2).mT], 1)
        tokens = tokens + self.positions(*grid)
        found = {}
        for number, block in enumerate(self.blocks):
            tokens = block(tokens)
            found[f"blocks.{number}"] = tokens
            if all(layer in found for layer in layers):
                break
        else:
            found["norm"] = self.norm(tokens)
        return {layer: found[layer][:, 1:].mT.unflatten(2, grid) for layer in layers}

    def positions(self, height: int, width: int) -> Tensor:
        """The position embedding (1, 1 + H'·W', C), interpolated from its own grid."""
        own, patches = self.pos_embed[:, :1], self.pos_embed[:, 1:].mT.unflatten(2, (GRID, GRID))
        if (height, width) != (GRID, GRID):
            patches = functional.interpolate(patches, (height, width), mode="bicubic", align_corners=False)
        return torch.cat([own, patches.flatten(2).mT], 1)
